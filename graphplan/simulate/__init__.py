"""Simulation: a program on priced stages becomes a timeline."""

from __future__ import annotations

from graphplan.simulate.engine import predict_script, predict_step, simulate_program

__all__ = ["predict_script", "predict_step", "simulate_program"]
