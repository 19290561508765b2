"""Captures: op graphs of model files, kept on disk with all that they were made from."""

from __future__ import annotations

from graphplan.captures.load import load_model_graph

__all__ = ["load_model_graph"]
