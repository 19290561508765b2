"""Capture: a PyTorch model becomes an OpGraph, and an OpGraph is cut into stage modules.

The package itself can be called, as `graphplan.capture(model, inputs)`: the API's verb and this
package share a name, and Python binds the package to it once it is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from graphplan.capture.captured import Captured
from graphplan.capture.cut import cut_graph
from graphplan.capture.execute import StepResult, run_stages
from graphplan.capture.modelfile import ModelFile, load_model_file
from graphplan.capture.stage import StageInput, StageModule, load_weights, shared_weights
from graphplan.capture.trace import trace_model_file, trace_module

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


class _CallablePackage(ModuleType):
    """A package that is also the API's verb of the same name."""

    def __call__(
        self, module: Any, inputs: Any, *, loss: Any = None, name: str | None = None
    ) -> Captured:
        return trace_module(module, inputs, loss=loss, name=name or type(module).__name__)


sys.modules[__name__].__class__ = _CallablePackage
