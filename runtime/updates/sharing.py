"""Sharing: how the update of a stage may be divided among its replicas.

An optimizer whose update treats every element by itself (SGD, Adam, ...) can update slices of
weights. One that needs whole weights (Adafactor's factors, Muon's products) gets whole weights,
each at one replica. One that mixes weights cannot be divided. Which one it is, is tried on a few
elements, for every number of dimensions that the weights have: the update of a weight is compared
with those of its two halves, and the update of two weights with that of each by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from graphplan.errors import InvalidOption
from graphplan_runtime.updates.buckets import Piece

Sharing = Literal["slices", "weights"]
KERNELS = ("foreach", "fused", "capturable", "differentiable")
"""Options of how an optimizer computes, not of what."""
NUM_STEPS = 3
NUM_ELEMENTS = 5120
"""Of a trial: optimizers that keep states in blocks do so from 4,096 elements on."""
TOLERANCE = 1e-9


def find_sharing(optimizer: torch.optim.Optimizer) -> Sharing:
    """How an optimizer's update may be divided; refuses one that cannot be."""
    found: set[bool] = set()
    with torch.random.fork_rng(devices=[]):
        for group in optimizer.param_groups:
            for num_dims in sorted({each.dim() for each in group["params"]} - {0}):
                found.add(_is_elementwise(optimizer, group, num_dims))
    return "slices" if found <= {True} else "weights"


def _is_elementwise(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], num_dims: int
) -> bool:
    start, *gradients = _draw(num_dims, seed=0)
    other, *others = _draw(num_dims, seed=1)
    try:
        alone = _train(optimizer, group, [start], [[each] for each in gradients])
        pairs = [list(pair) for pair in zip(gradients, others, strict=True)]
        beside = _train(optimizer, group, [start, other], pairs)
    except Exception:  # It cannot be made by its options: nothing is known but its gradients.
        return False
    if not _are_close(alone, beside[:1]):
        name = type(optimizer).__qualname__
        raise InvalidOption(
            f"{name} updates a weight by what others are: replicas cannot divide its update.",
            remedy="Search again with --zero 0, or for another optimizer.",
        )
    try:
        halves = [list(each.reshape(-1).tensor_split(2)) for each in gradients]
        apart = _train(optimizer, group, list(start.reshape(-1).tensor_split(2)), halves)
    except Exception:  # It wants weights of so many dimensions.
        return False
    return _are_close([alone[0].reshape(-1)], [torch.cat(apart)])


def _draw(num_dims: int, *, seed: int) -> list[torch.Tensor]:
    """Start and gradients of a weight with some dimensions."""
    rng = torch.Generator().manual_seed(seed)
    sizes = [2] * max(num_dims - 2, 0) + [16] * (num_dims > 1)
    shape = [*sizes, NUM_ELEMENTS // math.prod(sizes)]
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(NUM_STEPS + 1)]


def _train(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    starts: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    kind: Any = type(optimizer)
    weights = [torch.nn.Parameter(each.clone()) for each in starts]
    skip = ("params", "initial_lr", *KERNELS)
    made = kind([{"params": weights, **{k: v for k, v in group.items() if k not in skip}}])
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        made.step()
    return [each.detach() for each in weights]


def _are_close(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(
        torch.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE)
        for one, two in zip(some, others, strict=True)
    )


def give_pieces(
    optimizer: torch.optim.Optimizer, pieces: Iterable[tuple[Piece, torch.nn.Parameter]]
) -> None:
    """Let an optimizer that was made for whole weights update a replica's pieces of them.

    Its groups were made by what the weights are: matrices with decay, vectors without.
    """
    own = {piece.weight: (piece, parameter) for piece, parameter in pieces}
    for group in optimizer.param_groups:
        group["params"] = [own[weight][1] for weight in group["params"] if weight in own]
    states = dict(optimizer.state)
    optimizer.state.clear()
    for weight, state in states.items():
        if weight in own:
            piece, parameter = own[weight]
            optimizer.state[parameter] = map_state(state, weight.shape, piece.take_from)


def map_state(
    state: Mapping[str, Any],
    shape: torch.Size,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, Any]:
    """A state with other tensors in place of those that are shaped as the weight."""
    return {
        key: change(value).clone()
        if isinstance(value, torch.Tensor) and value.shape == shape and value.dim()
        else value
        for key, value in state.items()
    }
