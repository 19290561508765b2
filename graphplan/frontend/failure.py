"""Failure: what torch raised becomes an error that names the user's line and what to change."""

from __future__ import annotations

import inspect
from textwrap import shorten

from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from graphplan.errors import CaptureError
from graphplan.frontend.attempt import AttemptFailed
from graphplan.frontend.places import place_of_error
from graphplan.frontend.withloss import WithLoss

_VALUE_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


def explain_failure(failure: AttemptFailed) -> tuple[str, str | None]:
    """Why a trace failed in a few words, and where."""
    error = failure.__cause__
    assert error is not None
    if isinstance(error, _VALUE_ERRORS):
        return "what it does next depends on the values of a tensor", place_of_error(error)
    if isinstance(error, CaptureError):
        return error.message, None
    return f"{type(error).__name__}: {_first_line(error)}", place_of_error(error)


def describe_failure(failure: AttemptFailed) -> CaptureError:
    """The error for a model that no way of tracing can follow."""
    error = failure.__cause__
    assert error is not None
    if isinstance(error, CaptureError):
        return error
    place = place_of_error(error) or "the model"
    if isinstance(error, _VALUE_ERRORS):
        return CaptureError(
            f"{place}: what the model does next depends on the values of a tensor.",
            remedy="Use torch.where instead of `if`, or move this code into a sub-module of its"
            " own and build the module with real weights: it is then kept as one op.",
        )
    return CaptureError(
        f"{place}: torch.export cannot trace this ({type(error).__name__}: {_first_line(error)}).",
        remedy="Use torch ops on this line, or move it into a sub-module of its own and build the"
        " module with real weights: it is then kept as one op.",
    )


def describe_users_error(error: Exception, module: nn.Module) -> CaptureError:
    """The error for a model that fails on the example inputs without any tracing."""
    place = place_of_error(error) or "the model"
    model = module.model if isinstance(module, WithLoss) else module
    assert isinstance(model, nn.Module)
    takes = ", ".join(inspect.signature(model.forward).parameters)
    loss = "; loss(output, batch) gets its output and all of them"
    return CaptureError(
        f"{place}: the model fails on the example inputs:"
        f" {type(error).__name__}: {_first_line(error)}",
        remedy="The model must run on what inputs() returns:"
        f" {type(model).__name__}.forward takes {shorten(takes, 200, placeholder=' …')}"
        f"{loss if isinstance(module, WithLoss) else ''}.",
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "no message"
