"""Staged torch models for replays: many runs at once, and backwards that may use other weights.

The weights of a stage are one tensor [runs, parameters]; a run is one seed at one learning rate,
and all runs go through every operation together. Layers take their parameters as views of that
tensor. Where F saved such a view for the backward, B gets the same view of the weights that the
policy reads there: activations are F's, weights are B's, as in a runtime that updates weights in
place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Views = Callable[[str], Tensor]
"""The parameter of a name, [runs, *shape]."""


@dataclass(frozen=True)
class StageLayout:
    """Names and shapes of the parameters of one stage; matrices are [inputs, outputs]."""

    shapes: dict[str, tuple[int, ...]]

    @property
    def num_parameters(self) -> int:
        """Parameters of one run."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def view_weights(self, weights: Tensor) -> Views:
        """Parameters as views of the weights of all runs."""
        views, first = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            views[name] = weights[:, first : first + size].view(-1, *shape)
            first += size
        return views.__getitem__

    def draw_weights(self, seeds: Sequence[int], stage: int) -> Tensor:
        """Kaiming-uniform matrices and zero vectors, equal for equal seeds."""
        rows = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(1000 * seed + stage)
            parts = []
            for shape in self.shapes.values():
                bound = math.sqrt(3 / shape[0]) if len(shape) > 1 else 0.0
                part = (2 * torch.rand(math.prod(shape), generator=generator) - 1) * bound
                parts.append(part)
            rows.append(torch.cat(parts) if parts else torch.zeros(0))
        return torch.stack(rows)


@dataclass
class Saved:
    """What a backward needs: the graph of F, its leaves, and the weights that B reads."""

    output: Tensor
    inputs: tuple[Tensor, ...]
    weights: Tensor
    current: Tensor


@dataclass
class StagedModel:
    """A chain of stages for `replay_schedule`.

    `run_stage(stage, views, inputs, micro_batch)` computes a stage; the last one returns the loss
    of every run. Losses are noted by micro-batch.
    """

    layouts: Sequence[StageLayout]
    run_stage: Callable[[int, Views, tuple[Tensor, ...], int], Tensor]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        self.losses: dict[int, Tensor] = {}

    def start_weights(self, stage: int) -> Tensor:
        """The same weights for the runs of one seed."""
        return self.layouts[stage].draw_weights(self.seeds, stage)

    def run_forward(
        self, stage: int, weights: Tensor, inputs: tuple[Tensor, ...], micro_batch: int
    ) -> tuple[Tensor, Saved]:
        """Run a stage; views of its weights are saved as places, not as values."""
        leaf = weights.detach().requires_grad_()
        taken = tuple(each.detach().requires_grad_() for each in inputs)
        saved = Saved(leaf, taken, leaf, leaf)
        storage = leaf.untyped_storage().data_ptr()

        def pack(tensor: Tensor) -> Any:
            if tensor.untyped_storage().data_ptr() != storage:
                return tensor
            return tensor.size(), tensor.stride(), tensor.storage_offset()

        def unpack(found: Any) -> Tensor:
            return found if isinstance(found, Tensor) else saved.current.as_strided(*found)

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            views = self.layouts[stage].view_weights(leaf)
            saved.output = self.run_stage(stage, views, taken, micro_batch)
        if stage == len(self.layouts) - 1:
            self.losses[micro_batch] = saved.output.detach()
        return saved.output.detach(), saved

    def run_backward(
        self, stage: int, weights: Tensor, saved: Saved, gradient: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Gradients of the inputs and the weights, at the backward's weights."""
        saved.current = weights.detach()
        given = torch.ones_like(saved.output) if gradient is None else gradient
        found = torch.autograd.grad(saved.output, (*saved.inputs, saved.weights), given)
        return found[:-1], found[-1]

    def evaluate(self, weights: Sequence[Tensor], micro_batch: int) -> Tensor:
        """The loss of every run on one micro-batch, with the same weights everywhere."""
        with torch.no_grad():
            value: tuple[Tensor, ...] = ()
            for stage, layout in enumerate(self.layouts):
                views = layout.view_weights(weights[stage])
                value = (self.run_stage(stage, views, value, micro_batch),)
            return value[0]


def apply_linear(inputs: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """[runs, rows, inputs] x [runs, inputs, outputs] + [runs, outputs]."""
    return torch.baddbmm(bias.unsqueeze(1), inputs, matrix)
