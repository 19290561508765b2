"""Regions: runs of ops of a stage whose results the backward computes again.

    forward     x --> [ a  b  c ] --> y --> d          nothing of a, b, c is kept but x
    backward    x --> a  b  c, with autograd, then their backward

A region is a run of recomputed ops that follow one another in the code of the stage. It is run
without autograd, as one node of the graph that keeps what comes in. When the gradients of what goes
out have come, the node runs the ops again, with the random numbers, under the autocast and on the
weights of its backward, and goes on with theirs. Recomputation: Training Deep Nets with Sublinear
Memory Cost, arXiv 1604.06174.

Some ops stay outside, and their results are kept: those that write into buffers, which would do it
twice, and where the backward is split those through which no gradient of data flows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx

Enter = Callable[[], contextlib.AbstractContextManager[object]]


@dataclasses.dataclass(frozen=True)
class Region:
    """Consecutive nodes, with what they read from others and what others read of them."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def find_regions(graph: fx.Graph, again: Collection[str]) -> list[Region]:
    """The runs of the ops that are named, without ops of several results."""
    runs: list[list[fx.Node]] = [[]]
    for node in graph.nodes:
        if node.op == "call_function" and node.name in again and not _has_parts(node):
            runs[-1].append(node)
        elif node.op in ("call_function", "output"):  # Placeholders and weights are no ops.
            runs.append([])
    return [_make_region(run) for run in runs if run]


def _has_parts(node: fx.Node) -> bool:
    """Whether its result is no tensor, or a part of such a result; these are mostly views."""
    return node.target is operator.getitem or any(
        user.target is operator.getitem for user in node.users
    )


def _make_region(run: Sequence[fx.Node]) -> Region:
    own = set(run)
    inputs = dict.fromkeys(
        given for node in run for given in node.all_input_nodes if given not in own
    )
    outputs = [node for node in run if any(user not in own for user in node.users)]
    return Region(tuple(run), tuple(inputs), tuple(outputs))


@dataclasses.dataclass(frozen=True)
class Again:
    """How a region is run again."""

    entering: Enter
    """What holds while it runs: autocast."""
    device: torch.device
    is_random: bool

    def draw_state(self) -> torch.Tensor | None:
        """Of the generator, for a region that draws."""
        if not self.is_random:
            return None
        if self.device.type == "cpu":
            return torch.get_rng_state()
        state: torch.Tensor = torch.get_device_module(self.device).get_rng_state(self.device)
        return state

    def restore(self, state: torch.Tensor | None) -> None:
        """Draw the same numbers again."""
        if state is None:
            return
        if self.device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self.device).set_rng_state(state, self.device)


def call_region(
    again: Again, function: Callable[..., tuple[Any, ...]], *given: Any
) -> tuple[Any, ...]:
    """function(*given), which keeps what it is given and nothing else."""
    if not torch.is_grad_enabled():
        return function(*given)
    apply: Callable[..., tuple[Any, ...]] = _Recomputed.apply
    return apply(again, function, *given)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, again: Again, function: Callable[..., tuple[Any, ...]], *given: Any
    ) -> tuple[Any, ...]:
        ctx.again, ctx.function = again, function
        ctx.state = again.draw_state()
        ctx.plain = [None if isinstance(each, torch.Tensor) else each for each in given]
        ctx.save_for_backward(*(each for each in given if isinstance(each, torch.Tensor)))
        ctx.set_materialize_grads(False)
        made = function(*given)
        ctx.mark_non_differentiable(*_list_plain(made))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        tensors = iter(ctx.saved_tensors)
        needs = ctx.needs_input_grad[2:]
        given = [
            next(tensors).detach().requires_grad_(need) if plain is None else plain
            for plain, need in zip(ctx.plain, needs, strict=True)
        ]
        ctx.again.restore(ctx.state)
        with torch.enable_grad(), ctx.again.entering():
            made = ctx.function(*given)
        pairs = [
            (each, gradient)
            for each, gradient in zip(made, gradients, strict=True)
            if gradient is not None and each.requires_grad
        ]
        leaves = [each for each, need in zip(given, needs, strict=True) if need]
        found = iter(_differentiate(pairs, leaves))
        return None, None, *(next(found) if need else None for need in needs)


def _list_plain(made: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Results that have no gradient by what they are."""
    for each in made:
        if isinstance(each, torch.Tensor) and not (each.is_floating_point() or each.is_complex()):
            yield each


def _differentiate(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], leaves: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if not pairs or not leaves:
        return [None] * len(leaves)
    tensors, gradients = zip(*pairs, strict=True)
    return torch.autograd.grad(tensors, leaves, gradients, allow_unused=True)
