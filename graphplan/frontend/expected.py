"""Expected sizes: what a tensor is taken to be whose size depends on the values of others.

Routing to experts looks for the rows of each: `(expert == 3).nonzero()` has at most as many results
as there are rows, and how many is not known before the values are. torch knows the bound. Of k such
searches that differ in a number only (`expert == 0`, `expert == 1`, …; `mask[0]`, `mask[1]`, …)
each is expected to find a k-th of its bound, since no row is found twice; one that stands alone,
half of it. A size without a bound counts as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from graphplan.frontend.example import dtype_name
from graphplan.frontend.observe import Run
from graphplan.frontend.scalars import depends_on_data, largest_size, unbacked_symbols
from graphplan.nouns.tensor import TensorSpec, format_dim, parse_dim

ALONE = 2
"""What part of its bound a size is expected to be when nothing tells more: one in two."""


class Shares:
    """How many searches share the bound of every symbol of an observed run."""

    def __init__(self, run: Run) -> None:
        self._share_by_symbol: dict[Any, int] = {}
        for node, seen in run.items():
            if isinstance(seen.value, torch.Tensor):
                for symbol in unbacked_symbols(seen.value):
                    if symbol not in self._share_by_symbol:
                        self._share_by_symbol[symbol] = _count_searches(node)

    def of_size(self, size: Any) -> int:
        """What a size's bound is divided by; 1 for a size that is known."""
        return max((self._share_by_symbol[each] for each in unbacked_symbols(size)), default=1)


def expect_spec(bounds: TensorSpec | None, value: Any, shares: Shares) -> TensorSpec | None:
    """The expected tensor from the largest that it can be; None when the size is known."""
    if bounds is None or not isinstance(value, torch.Tensor) or not depends_on_data(value):
        return None
    dims = []
    for dim, size in zip(bounds.shape, value.shape, strict=True):
        share = shares.of_size(size)
        scale, offset = (-(-part // share) for part in parse_dim(dim))
        dims.append(format_dim(scale, offset) if scale else max(1, offset))
    return TensorSpec(dtype=dtype_name(value.dtype), shape=tuple(dims))


def largest_shape(value: Any) -> list[int]:
    """The sizes of a tensor, those that depend on values as large as they can be."""
    return [largest_size(size) for size in value.shape]


def _count_searches(node: fx.Node) -> int:
    """How many ops like those that lead to this one look at the same value for another number."""
    current: fx.Node | None = node
    while current is not None:
        given: Sequence[fx.Node] = current.all_input_nodes
        if len(given) != 1:
            return ALONE
        alike = {user.args[1:] for user in given[0].users if user.target is current.target}
        if len(alike) > 1:
            return len(alike)
        current = given[0]
    return ALONE
