"""The frontend: a PyTorch model becomes an OpGraph, and an OpGraph is cut into stage modules."""

from __future__ import annotations

from graphplan.frontend.captured import Captured
from graphplan.frontend.cut import cut_graph
from graphplan.frontend.execute import StepResult, run_stages
from graphplan.frontend.modelfile import ModelFile, load_model_file
from graphplan.frontend.stage import StageInput, StageModule, load_weights, shared_weights
from graphplan.frontend.trace import trace_model_file, trace_module

__all__ = [
    "Captured",
    "ModelFile",
    "StageInput",
    "StageModule",
    "StepResult",
    "cut_graph",
    "load_model_file",
    "load_weights",
    "run_stages",
    "shared_weights",
    "trace_model_file",
    "trace_module",
]
