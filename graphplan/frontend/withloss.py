"""WithLoss: a model and its loss as one module, so that the loss belongs to the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from graphplan.errors import CaptureError
from graphplan.frontend.example import Example, parameter_names

Loss = Callable[[Any, Any], Any]
"""loss(output of the model, batch as `inputs` gave it): a scalar, or several by name, whose sum is
differentiated."""

PREFIX = "model."
"""What `WithLoss` puts before the names of the user's module."""


class WithLoss(nn.Module):
    """Takes a batch, returns the loss; of several losses their sum, and each under its name.

    What the model's forward does not take (labels, say) goes to the loss only.
    """

    def __init__(self, model: nn.Module, loss: Loss, example: Example) -> None:
        super().__init__()
        _check_call(loss)
        self.model = model
        self.training = model.training
        num_args, keys = _taken_arguments(model.forward, example)

        def forward(*args: Any, **kwargs: Any) -> Any:
            taken = {key: value for key, value in kwargs.items() if key in keys}
            found = loss(self.model(*args[:num_args], **taken), kwargs or args)
            return _add_losses(found) if isinstance(found, Mapping) else found

        forward.__signature__ = _batch_signature(model.forward, example)  # type: ignore[attr-defined]
        self.forward = forward


def _add_losses(losses: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Several losses and the one that is differentiated: the one called `loss`, or their sum."""
    if "loss" in losses:
        return dict(losses)
    first, *others = losses.values()
    return {"loss": sum(others, first), **losses}


def _check_call(loss: Loss) -> None:
    """Refuse a loss that cannot be called with an output and a batch."""
    try:
        signature = inspect.signature(loss)
    except ValueError:  # Written in C: it says no more than that it can be called.
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise CaptureError(
            f"loss{signature} cannot take the model's output and the batch: {error}.",
            remedy="Write `def loss(output, batch)`, where batch is all that inputs() returns.",
        ) from error


def _taken_arguments(forward: Callable[..., Any], example: Example) -> tuple[int, set[str]]:
    """How many positional arguments, and which keyword arguments of the batch, a forward takes."""
    parameters = inspect.signature(forward).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    names = {parameter.name for parameter in parameters}
    every_arg = inspect.Parameter.VAR_POSITIONAL in kinds
    every_key = inspect.Parameter.VAR_KEYWORD in kinds
    num_args = len(example.args) if every_arg else len(parameter_names(forward))
    return num_args, {key for key in example.kwargs if every_key or key in names}


def _batch_signature(forward: Callable[..., Any], example: Example) -> inspect.Signature:
    """The names that the inputs of the graph get: the model's own, `batch_1` for others."""
    own = parameter_names(forward)
    names = [own[i] if i < len(own) else f"batch_{i}" for i in range(len(example.args))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in (*names, *example.kwargs)])
