"""Execution of stages in one process: the reference that the runtime and the tests compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from graphplan.frontend.stage import StageModule


@dataclass(frozen=True)
class StepResult:
    """Outputs of the model by value name, gradients by weight name (shared weights summed)."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def run_stages(
    stages: Sequence[StageModule],
    inputs: Mapping[str, torch.Tensor],
    *,
    output_gradients: Mapping[str, torch.Tensor] | None = None,
) -> StepResult:
    """Forward through all stages, then backward stage by stage in reverse.

    Stages talk through values only: what a stage receives is cut off from the sender's autograd
    graph, as it would be on another device. Gradients of a value that several stages read are added
    in the order of the stages' forward. The backward starts at the loss, or at
    `output_gradients`.
    """
    order = sort_stages(stages)
    values = dict(inputs)
    received: dict[int, dict[str, torch.Tensor]] = {}
    for stage in order:
        received[stage.index] = {
            given.name: values[given.name].detach().requires_grad_(given.needs_grad)
            for given in stage.inputs
        }
        values |= stage.run_values(received[stage.index])
    pending = dict(output_gradients or {})
    for stage in order:
        if stage.loss is not None and not pending:
            pending[stage.loss] = torch.ones_like(values[stage.loss])
    gradients = _run_backward(order, values, received, pending)
    return StepResult(outputs={n: v.detach() for n, v in values.items()}, gradients=gradients)


def _run_backward(
    order: Sequence[StageModule],
    values: Mapping[str, torch.Tensor],
    received: Mapping[int, Mapping[str, torch.Tensor]],
    pending: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    parts: dict[str, list[torch.Tensor]] = {name: [grad] for name, grad in pending.items()}
    gradients: dict[str, torch.Tensor] = {}
    for stage in reversed(order):
        ends = [name for name in stage.outputs if name in parts and values[name].requires_grad]
        leaves = {n: t for n, t in received[stage.index].items() if t.requires_grad}
        weights = {n: t for n, t in stage.named_weights().items() if t.requires_grad}
        if not ends or not (leaves or weights):
            continue
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [values[name] for name in ends],
            [*leaves.values(), *weights.values()],
            [_sum_reversed(parts[name]) for name in ends],
            allow_unused=True,
        )
        for name, gradient in zip(leaves, found, strict=False):
            if gradient is not None:
                parts.setdefault(name, []).append(gradient)
        for name, gradient in zip(weights, found[len(leaves) :], strict=True):
            if gradient is not None:
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return gradients


def _sum_reversed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Parts arrive last stage first; they are added first stage first."""
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = total + part
    return total


def sort_stages(stages: Sequence[StageModule]) -> list[StageModule]:
    """The stages in a topological order, lowest number first where there is a choice."""
    by_index = {stage.index: stage for stage in stages}
    waiting = {
        stage.index: {given.source for given in stage.inputs if given.source is not None}
        for stage in stages
    }
    order: list[StageModule] = []
    while waiting:
        index = min(index for index, before in waiting.items() if not before)
        order.append(by_index[index])
        del waiting[index]
        for before in waiting.values():
            before.discard(index)
    return order
