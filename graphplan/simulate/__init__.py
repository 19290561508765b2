"""Simulation: a program on priced stages becomes a timeline."""

from __future__ import annotations

from graphplan.simulate.engine import predict_step, simulate_program
from graphplan.simulate.explain import Finding, explain_timeline
from graphplan.simulate.predict import predict_makespan

__all__ = ["Finding", "explain_timeline", "predict_makespan", "predict_step", "simulate_program"]
