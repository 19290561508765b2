"""A call of a random op, and how its rows are drawn piece by piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphplan_runtime.messages.parcels import Piece
from graphplan_runtime.messages.rows import BatchAxis, overlap_rows

aten = torch.ops.aten

PERMUTING = {aten.randperm.default}
"""What draws indices of samples: those of a piece mean nothing in a larger batch."""
VALUE_BOUND = {aten.poisson.default, aten.binomial.default, aten._standard_gamma.default}
"""What takes as much of the generator as the values decide."""

_BY_TASK = ", as --reference micro-batch does"

Sizes = tuple[tuple[int, ...] | None, ...]
"""Of the leaves of a nest: shapes of tensors, (n,) for a number n, None for all else."""
Line = tuple[tuple[int, int], ...]
"""Sizes as functions of the number of samples: (scale, offset) of each."""
Order = tuple[int, ...] | None
"""Dimensions of a tensor by their strides, the largest first; None for what is no tensor."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """One call of a random op in the captured graph."""

    kind: Any
    op: str
    """The op of the graph that makes the call."""
    stage: int
    sizes_by_rows: Mapping[int, tuple[Sizes, Sizes]]
    """Sizes of its arguments and of its results, at one number of samples or at two."""
    orders: tuple[Order, ...]
    """How its arguments lie in memory: numbers are drawn in the order of memory."""


def measure_sizes(nest: Any) -> Sizes:
    """Shapes and numbers of a nest, in flat order."""
    found: list[tuple[int, ...] | None] = []
    for leaf in pytree.tree_leaves(nest):
        if isinstance(leaf, torch.Tensor):
            # A size that depends on values is no number here; it fits nothing.
            found.append(tuple(size if type(size) is int else -1 for size in leaf.shape))
        else:
            found.append((leaf,) if type(leaf) is int else None)
    return tuple(found)


def find_orders(nest: Any) -> tuple[Order, ...]:
    """How the tensors of a nest lie in memory."""
    leaves = pytree.tree_leaves(nest)
    return tuple(_find_order(each) if isinstance(each, torch.Tensor) else None for each in leaves)


def _find_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions of one entry have no place of their own: they come last."""
    sizes, strides = tensor.shape, tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda d: (sizes[d] == 1, -strides[d], d)))


@dataclasses.dataclass(frozen=True)
class DrawCall:
    """A call of the eager module, with the dimensions along which its samples lie."""

    func: Any
    leaves: list[Any]
    tree: pytree.TreeSpec
    lines: Sequence[Line | None] | None
    """Of each leaf; None when the sizes are not those of the graph."""
    results: Sequence[Line | None]
    orders: tuple[Order, ...]

    @staticmethod
    def fit(draw: Draw, func: Any, args: Any, kwargs: Any, *, num_rows: int) -> DrawCall:
        """The call of a draw's op on `num_rows` samples."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        own = measure_sizes((args, kwargs))
        (first, (given, made)), *others = sorted(draw.sizes_by_rows.items())
        lines: Sequence[Line | None] | None
        results: Sequence[Line | None] | None
        if others:
            second, (given_2, made_2) = others[0]
            lines = _fit_lines(first, given, second, given_2)
            results = _fit_lines(first, made, second, made_2)
        else:  # A fixed batch: the eager module tells what grows. A result is like an argument.
            lines = _fit_lines(first, given, num_rows, own)
            line_by_size = dict(zip(given, lines or (), strict=False))
            results = [line_by_size.get(size) for size in made]
        if lines is not None and _sizes_at(lines, num_rows) != own:
            lines = None
        return DrawCall(func, leaves, tree, lines, results or (), draw.orders)

    def explain_miss(self, rows: range, pieces: Sequence[Piece]) -> str | None:
        """Why the draws of the pieces cannot be had."""
        if self.lines is None:
            return "its sizes in one process are not those of the graph"
        if len(pieces) == 1 and self.is_whole(rows, pieces[0]):
            return None
        is_cut = any(not _contains(rows, piece.rows) for piece in pieces)
        if is_cut and self.func in VALUE_BOUND:
            return "how much it draws depends on values"
        if self.func in PERMUTING:
            return f"it draws an order of the samples of a task{_BY_TASK}"
        if not all(self._axes()):
            return f"every task draws numbers for all its samples together{_BY_TASK}"
        return None

    def is_whole(self, rows: range, piece: Piece) -> bool:
        """Whether the piece draws exactly what the module asks for, and in the same order."""
        if self.orders != find_orders(self.leaves):
            return False
        if piece.rows == rows:
            return True
        assert self.lines is not None
        grows = any(scale for line in (*self.lines, *self.results) for scale, _ in line or ())
        return not grows and _contains(piece.rows, rows)

    def _axes(self) -> list[BatchAxis | None]:
        """Of the results and of what is written into."""
        assert self.lines is not None
        written = [self.lines[place] for place in self._written()]
        return [_find_axis(line) for line in (*self.results, *written)]

    def _written(self) -> list[int]:
        """Places of the leaves that the op writes into; those are leading, plain arguments."""
        return [
            place
            for place, argument in enumerate(self.func._schema.arguments[: len(self.leaves)])
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    def run(self, rows: range, piece: range) -> Any:
        """The op on the rows of a piece; results and written arguments for those of `rows`."""
        assert self.lines is not None
        leaves = [
            _take_rows(leaf, line, order, rows, piece)
            for leaf, line, order in zip(self.leaves, self.lines, self.orders, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        result = self.func(*args, **kwargs)
        both = overlap_rows(rows, piece)
        kept = range(both.start - piece.start, both.stop - piece.start)
        written = {}
        for place in self._written():
            axis = _find_axis(self.lines[place])
            written[place] = _narrow(leaves[place], axis, kept)
        own = {id(leaves[place]): place for place in written}
        flat, tree = pytree.tree_flatten(result)
        found = [
            own[id(each)] if id(each) in own else _narrow(each, _find_axis(line), kept)
            for each, line in zip(flat, self.results, strict=True)
        ]
        return found, tree, written

    def join(self, made: Sequence[Any]) -> Any:
        """One result of those of the pieces, which are in the order of their rows."""
        assert self.lines is not None
        for place in self._written():
            axis = _find_axis(self.lines[place])
            assert axis is not None
            parts = [written[place] for _, _, written in made]
            self.leaves[place].copy_(torch.cat(parts, axis.dim))
        flat = []
        for place, line in enumerate(self.results):
            parts = [found[place] for found, _, _ in made]
            if isinstance(parts[0], int):
                flat.append(self.leaves[parts[0]])
            else:
                axis = _find_axis(line)
                assert axis is not None
                flat.append(torch.cat(parts, axis.dim))
        return pytree.tree_unflatten(flat, made[0][1])


def _fit_lines(a: int, sizes_a: Sizes, b: int, sizes_b: Sizes) -> list[Line | None] | None:
    """Sizes as lines through those at two numbers of samples; None when they are not alike."""
    if len(sizes_a) != len(sizes_b):
        return None
    found: list[Line | None] = []
    for one, other in zip(sizes_a, sizes_b, strict=True):
        if one is None or other is None:
            found.append(None)
            continue
        if len(one) != len(other):
            return None
        scales = [(y - x) // max(b - a, 1) for x, y in zip(one, other, strict=True)]
        found.append(tuple((s, x - s * a) for s, x in zip(scales, one, strict=True)))
    return found


def _sizes_at(lines: Sequence[Line | None], num_rows: int) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(
        None if line is None else tuple(scale * num_rows + offset for scale, offset in line)
        for line in lines
    )


def _find_axis(line: Line | None) -> BatchAxis | None:
    """The one size that is proportional to the number of samples."""
    grown = [(dim, *pair) for dim, pair in enumerate(line or ()) if pair[0]]
    if len(grown) != 1 or grown[0][2]:
        return None
    return BatchAxis(dim=grown[0][0], scale=grown[0][1])


def _contains(outer: range, inner: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _narrow(tensor: torch.Tensor, axis: BatchAxis | None, rows: range) -> torch.Tensor:
    assert axis is not None
    return tensor.narrow(axis.dim, rows.start * axis.scale, len(rows) * axis.scale)


def _take_rows(leaf: Any, line: Line | None, order: Order, rows: range, piece: range) -> Any:
    """A piece's share of an argument; rows that the module does not have repeat others."""
    if line is None:
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return line[0][0] * len(piece) + line[0][1]
    axis = _find_axis(line)
    if axis is None:
        return leaf
    assert order is not None
    if _contains(rows, piece):
        taken = _narrow(leaf, axis, range(piece.start - rows.start, piece.stop - rows.start))
    else:
        places = torch.tensor([min(max(r, rows.start), rows.stop - 1) - rows.start for r in piece])
        entries = places[:, None] * axis.scale + torch.arange(axis.scale)
        taken = leaf.index_select(axis.dim, entries.flatten())
    back = [order.index(dim) for dim in range(len(order))]
    return taken.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
