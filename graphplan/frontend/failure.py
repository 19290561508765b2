"""Failure: what torch raised becomes an error that names the user's line and what to change."""

from __future__ import annotations

import inspect
from textwrap import shorten

from torch import fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from graphplan.errors import CaptureError
from graphplan.frontend.attempt import AttemptFailed
from graphplan.frontend.nodes import place_of_node
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
    place = place_of_error(error)
    inner = f" (in {type(failure.watch.modules[-1]).__name__})" if failure.watch.modules else ""
    where = f"{place or 'the model'}{inner}"
    if isinstance(error, _VALUE_ERRORS):
        return CaptureError(
            f"{where}: what the model does next depends on the values of a tensor.",
            remedy=_find_workaround(place)
            or "Use torch.where instead of `if`, or move this code into a sub-module of its"
            " own and build the module with real weights: it is then kept as one op.",
        )
    return CaptureError(
        f"{where}: torch.export cannot trace this ({type(error).__name__}: {_first_line(error)}).",
        remedy=_find_workaround(place)
        or "Use torch ops on this line, or move it into a sub-module of its own and build the"
        " module with real weights: it is then kept as one op.",
    )


def describe_unsized(node: fx.Node, error: Exception) -> CaptureError:
    """The error for an op that cannot run without values, though it could be traced."""
    place = place_of_node(node)
    return CaptureError(
        f"{place or 'the model'}: {node.target} cannot be sized ({_first_line(error)}).",
        remedy=_find_workaround(place)
        or "Give it sizes that do not come from the values of a tensor (no .item(), no .tolist()).",
    )


def _find_workaround(place: str | None) -> str | None:
    """What to do about code of an installed library, which the user had better not change."""
    if place is None or "site-packages" not in place:
        return None
    return (
        "This is library code; choose another way through it where the model is built"
        ' (transformers: attn_implementation="eager" or "sdpa", use_cache=False,'
        ' experts_implementation="grouped_mm", no labels and a loss() of your own), or put the'
        " part that fails into a sub-module of your own: it is then kept as one op."
    )


def describe_users_error(error: Exception, module: nn.Module) -> CaptureError:
    """The error for a model that fails on the example inputs without any tracing."""
    place = place_of_error(error) or "the model"
    model = module.model if isinstance(module, WithLoss) else module
    assert isinstance(model, nn.Module)
    takes = ", ".join(inspect.signature(model.forward).parameters)
    loss = "; loss(output, batch) gets its output and all of them"
    remedy = (
        "The model must run on what inputs() returns:"
        f" {type(model).__name__}.forward takes {shorten(takes, 200, placeholder=' …')}"
        f"{loss if isinstance(module, WithLoss) else ''}."
    )
    if "FlexAttention does not support backward on CPU" in str(error):
        remedy = (
            "Models are captured on the CPU: build it with torch's scaled_dot_product_attention"
            ' (transformers: attn_implementation="sdpa").'
        )
    return CaptureError(
        f"{place}: the model fails on the example inputs:"
        f" {type(error).__name__}: {_first_line(error)}",
        remedy=remedy,
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "no message"
