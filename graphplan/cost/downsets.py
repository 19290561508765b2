"""DownsetCuts: tables of every stage between two nested down-sets (see cuts.py).

Let n(D) be how many of a tensor's readers lie in D. A stage touches the tensor exactly when n
changes between its two cuts, so that what a stage does *not* touch is a sum over equal counts: a
product of two matrices with a column for every tensor and count. Workspace alone is rounded up, to
one of a few levels.

    items a b c, a tensor of 5 bytes that b and c read      n   {}  {a}  {a,b}  {a,c}  {a,b,c}
    count 0: 1 1 0 0 0   count 1: 0 0 1 1 0                     0    0     1      1      2
    from {a} to {a,b} the count changes: 5 bytes come in; from {a,b} to {a,b,c} again
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from graphplan.cost.cuts import Bools, Cuts
from graphplan.nouns.problem import Floats, Ints

if TYPE_CHECKING:
    from graphplan.cost.model import CostModel

NUM_LEVELS = 8
"""Levels of workspace that are told apart."""


class DownsetCuts(Cuts):
    """Down-sets of items as bit sets, small ones first; a stage is what one adds to another."""

    def __init__(
        self, cost: CostModel, items: Sequence[Sequence[int]], downsets: Sequence[int]
    ) -> None:
        super().__init__(cost, items)
        self.downsets = sorted(downsets, key=lambda d: (d.bit_count(), d))
        self.num_cuts = len(self.downsets)
        self.held: Floats = numpy.array(
            [[each >> item & 1 for item in range(self.num_items)] for each in self.downsets],
            dtype=float,
        )
        """[cut, item]: 1 where the item is in the cut."""

    @cached_property
    def legal(self) -> Bools:
        """Whether the second cut holds the first one and more."""
        sizes = self.held.sum(axis=1)
        inside = self.held @ self.held.T == sizes[:, None]
        legal: Bools = inside & (sizes[:, None] < sizes[None, :])
        return legal

    def nodes_of(self, first: int, last: int) -> tuple[int, ...]:
        """The nodes that one cut adds to another, sorted."""
        added = self.downsets[last] & ~self.downsets[first]
        inside = (item for i, item in enumerate(self.items) if added >> i & 1)
        return tuple(sorted(node for item in inside for node in item))

    def list_single_steps(self) -> list[tuple[int, int, int]]:
        """(cut, next cut, item) of every step by one item."""
        position = {each: i for i, each in enumerate(self.downsets)}
        return [
            (i, position[each | 1 << item], item)
            for i, each in enumerate(self.downsets)
            for item in range(self.num_items)
            if not each >> item & 1 and each | 1 << item in position
        ]

    # -- counts ----------------------------------------------------------------------------------

    @cached_property
    def _save_counts(self) -> _Counts:
        return _Counts(self, [save.savers for save in self.saves])

    @cached_property
    def _tie_counts(self) -> _Counts:
        return _Counts(self, [tie.readers for tie in self.ties])

    @cached_property
    def _reader_counts(self) -> _Counts:
        return _Counts(self, [flow.readers for flow in self.flows])

    @cached_property
    def _owned(self) -> Floats:
        """[cut, flow]: 1 where the owner is in the cut."""
        owned = numpy.zeros((self.num_cuts, len(self.flows)))
        for f, flow in enumerate(self.flows):
            if flow.owner in self.item_of:
                owned[:, f] = self.held[:, self.item_of[flow.owner]]
        return owned

    @cached_property
    def _had(self) -> Floats:
        """The same, and 1 for flows that come from outside."""
        outside = numpy.array([flow.owner not in self.item_of for flow in self.flows], dtype=float)
        had: Floats = numpy.maximum(self._owned, outside[None, :])
        return had

    @cached_property
    def _unread(self) -> Bools:
        """[cut, flow]: whether a reader is not in the cut."""
        unread = numpy.ones((self.num_cuts, len(self.flows)), dtype=numpy.bool_)
        for f, flow in enumerate(self.flows):
            if all(node in self.item_of for node in flow.readers):
                readers = sorted({self.item_of[node] for node in flow.readers})
                unread[:, f] = ~self.held[:, readers].all(axis=1)
        return unread

    def _sum_saves(self, amounts: Sequence[int]) -> Ints:
        return self._save_counts.sum_changed(amounts)

    def _sum_ties(self, amounts: Sequence[int]) -> Ints:
        return self._tie_counts.sum_changed(amounts)

    def _sum_entering(self, amounts: Sequence[int]) -> Ints:
        return self._reader_counts.sum_changed(amounts, self._had)

    def _sum_leaving(self, amounts: Sequence[int]) -> Ints:
        left = self._owned * self._unread * numpy.array(amounts, dtype=float)
        return _whole(left.sum(axis=1)[None, :] - self._owned @ left.T)

    # -- sums and maxima -------------------------------------------------------------------------

    def _add_up(self, values: Any) -> Any:
        sums = self.held @ self._add_items(values)
        table = sums[None, :] - sums[:, None]
        return _whole(table) if values.dtype.kind == "i" else table

    def _find_largest(self, values: Ints) -> Ints:
        """Rounded up to a level."""
        peaks = self._peak_items(values)
        levels = numpy.unique(numpy.quantile(peaks, numpy.linspace(0, 1, NUM_LEVELS + 1)[1:]))
        table = numpy.zeros((self.num_cuts, self.num_cuts))
        below = 0.0
        for level in levels:
            held = self.held @ ((peaks > below) & (peaks <= level)).astype(float)
            table = numpy.where(held[None, :] > held[:, None], level, table)
            below = level
        return numpy.ceil(table).astype(numpy.int64)


class _Counts:
    """Columns [cut, (thing, count)]: 1 where so many of the thing's items are in the cut."""

    def __init__(self, cuts: DownsetCuts, things: Sequence[Iterable[int]]) -> None:
        columns, names = [numpy.zeros((cuts.num_cuts, 0))], []
        for name, nodes in enumerate(things):
            items = sorted({cuts.item_of[node] for node in nodes if node in cuts.item_of})
            inside = cuts.held[:, items].sum(axis=1)
            values = numpy.unique(inside)
            columns.append((inside[:, None] == values[None, :]).astype(float))
            names += [name] * len(values)
        self.columns: Floats = numpy.concatenate(columns, axis=1)
        self.names = numpy.array(names, dtype=numpy.int64)

    def sum_changed(self, amounts: Sequence[int], had: Floats | None = None) -> Ints:
        """Amounts of the things whose count differs between the cuts, of those that the first cut
        `had` if that is given."""
        weights = numpy.array(amounts, dtype=float)
        weighed = weights[None, :] * (numpy.ones((len(self.columns), 1)) if had is None else had)
        equal = (self.columns * weighed[:, self.names]) @ self.columns.T
        return _whole(weighed.sum(axis=1)[:, None] - equal)


def _whole(table: Floats) -> Ints:
    return numpy.rint(table).astype(numpy.int64)
