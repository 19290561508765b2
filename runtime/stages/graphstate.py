"""Graph state: what autograd has saved for a backward, taken out of a graph and put back into one.

A forward whose weights are gone cannot be repeated. Its graph can: the same ops on any weights give
a graph of the same shape, into which the saved tensors of the first one are put by hooks. Tensors
that share memory with the weights are left out: what that memory holds is the weight policy's to
say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

RAW, VALUE = "_raw_saved_", "_saved_"


def list_saved(
    roots: Sequence[GradientEdge | None], weights: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Saved tensors by their place in the graph."""
    own = {each.untyped_storage().data_ptr() for each in weights}
    return {
        place: value.detach()
        for place, _, value in _walk(roots)
        if value.untyped_storage().data_ptr() not in own
    }


def replace_saved(
    roots: Sequence[GradientEdge | None], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Let the backward find other saved tensors."""
    for place, raw, _ in list(_walk(roots)):
        if place in tensors:
            _replace(raw, tensors[place])


def _replace(raw: Any, tensor: torch.Tensor) -> None:
    raw.register_hooks(lambda _: None, lambda _: tensor)


def _walk(roots: Sequence[GradientEdge | None]) -> Iterator[tuple[str, Any, torch.Tensor]]:
    """Place, handle and value of every saved tensor, in an order that the graph's shape fixes."""
    waiting = [root.node for root in roots if root is not None][::-1]
    seen: dict[Any, int] = {}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        number = seen[node] = len(seen)
        for name in sorted(each for each in dir(node) if each.startswith(RAW)):
            raw, value = getattr(node, name), getattr(node, VALUE + name.removeprefix(RAW))
            pairs = [(raw, value)]
            if isinstance(raw, (tuple, list)):
                pairs = list(zip(raw, value, strict=True))
            for i, (handle, tensor) in enumerate(pairs):
                if isinstance(tensor, torch.Tensor):
                    yield f"{number}.{name.removeprefix(RAW)}.{i}", handle, tensor
        waiting += [each for each, _ in reversed(node.next_functions) if each is not None]
