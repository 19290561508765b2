"""Costs of every interval of a linear order at once, equal to the cost model's for each of them.

The order is cut into blocks; an interval [i, j) holds blocks i .. j-1. All tables are [i, j] with
j from 0 to the number of blocks; entries with j <= i mean nothing. What an interval touches (saved
storages, tied weights, entering and leaving flows) changes only at a few borders, so that each item
adds its bytes to a few rectangles of the table: four corners, then two cumulative sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy
from numpy.typing import NDArray

from graphplan.cost.model import bytes_per_trained_element
from graphplan.nouns.problem import Flow, Ints, Problem
from graphplan.partition.pipelines.remember import remember
from graphplan.partition.pipelines.sums import IntervalBytes, StageSums

Number = TypeVar("Number", numpy.float64, numpy.int64)
Rectangles = tuple[Ints, Ints]
"""[n, 4] of i0, i1, j0, j1 (inclusive), and the item of each row."""


class Intervals(StageSums):
    """The intervals of one order of a problem's nodes."""

    def __init__(self, problem: Problem, blocks: Sequence[Sequence[int]]) -> None:
        self.problem = problem
        self.blocks = tuple(tuple(block) for block in blocks)
        self.block_of = {node: b for b, block in enumerate(self.blocks) for node in block}
        self.num_blocks = len(self.blocks)

    def nodes_of(self, first: int, last: int) -> tuple[int, ...]:
        """Nodes of the interval [first, last), sorted."""
        return tuple(sorted(node for block in self.blocks[first:last] for node in block))

    @remember
    def legal(self) -> NDArray[numpy.bool_]:
        """Whether [i, j] is an interval: j > i."""
        return ~numpy.tri(self.num_blocks, self.num_blocks + 1, dtype=numpy.bool_)

    # -- memory ----------------------------------------------------------------------------------

    @remember
    def memory(self, size: int, *, recompute: bool) -> IntervalBytes:
        """Bytes at a sample size (its index), as `CostModel.stage_memory` counts them."""
        problem = self.problem
        held = self._sum_nodes(problem.held_bytes) + self._paint(
            self._tie_rectangles, [tie.held_bytes for tie in problem.ties]
        )
        per_element = sum(bytes_per_trained_element(problem.training, problem.element_bytes))
        saved = self._sum_nodes(problem.saved_bytes[size]) + self._paint(
            self._save_rectangles, [save.bytes_by_size[size] for save in problem.saves]
        )
        fixed = (
            held
            + per_element * self.trained_elements
            + self._buffer_bytes(size)
            + self._largest_workspace(size)
        )
        if recompute:
            fixed = fixed + saved
            saved = self._paint(
                self._enter_rectangles, [flow.bytes_by_size[size] for flow in problem.flows]
            )
        return IntervalBytes(fixed, numpy.where(self._needs_backward, saved, 0))

    @cached_property
    def trained_elements(self) -> Ints:
        """Elements of trainable weights, tied ones once."""
        ties = [tie.trained_elements for tie in self.problem.ties]
        own = self._sum_nodes(self.problem.trained_elements)
        return own + self._paint(self._tie_rectangles, ties)

    def _buffer_bytes(self, size: int) -> Ints:
        buffers = [
            flow.bytes_by_size[size] * (2 if flow.needs_grad else 1) for flow in self.problem.flows
        ]
        owned = [0 if flow.owner is None else 1 for flow in self.problem.flows]
        entering = self._paint(
            self._enter_rectangles, [b * o for b, o in zip(buffers, owned, strict=True)]
        )
        return entering + self._paint(self._leave_rectangles, buffers)

    def _largest_workspace(self, size: int) -> Ints:
        by_block = numpy.array(
            [self.problem.workspace_bytes[size, list(block)].max() for block in self.blocks]
        )
        table = numpy.zeros((self.num_blocks, self.num_blocks + 1), dtype=numpy.int64)
        for i in range(self.num_blocks):
            table[i, i + 1 :] = numpy.maximum.accumulate(by_block[i:])
        return table

    # -- transfers -------------------------------------------------------------------------------

    @remember
    def transfers(self, size: int) -> tuple[Ints, Ints]:
        """Bytes that cross the interval's front and back for one micro-batch, both directions."""
        weights = [
            0 if flow.owner is None else flow.bytes_by_size[size] * (2 if flow.needs_grad else 1)
            for flow in self.problem.flows
        ]
        return (
            self._paint(self._enter_rectangles, weights),
            self._paint(self._leave_rectangles, weights),
        )

    # -- rectangles ------------------------------------------------------------------------------

    @cached_property
    def _save_rectangles(self) -> Rectangles:
        return self._touch_rectangles([save.savers for save in self.problem.saves])

    @cached_property
    def _tie_rectangles(self) -> Rectangles:
        return self._touch_rectangles([tie.readers for tie in self.problem.ties])

    @cached_property
    def _enter_rectangles(self) -> Rectangles:
        """Intervals with a reader but without the owner."""
        return self._touch_rectangles(
            [flow.readers for flow in self.problem.flows],
            owners=[self._owner_block(flow) for flow in self.problem.flows],
        )

    def _touch_rectangles(
        self, items: Iterable[Sequence[int]], owners: Sequence[int] | None = None
    ) -> Rectangles:
        """For each item, the intervals that hold one of its nodes, by the first that they hold."""
        rows: list[tuple[int, int, int, int]] = []
        names: list[int] = []
        for name, nodes in enumerate(items):
            before = owners[name] if owners is not None else -1
            for block in sorted({self.block_of[node] for node in nodes}):
                if block > before:
                    rows.append((before + 1, block, block + 1, self.num_blocks))
                    names.append(name)
                    before = block
        return _pack(rows, names)

    @cached_property
    def _leave_rectangles(self) -> Rectangles:
        """Intervals with the owner but without all readers."""
        rows, names = [], []
        for name, flow in enumerate(self.problem.flows):
            owner = self._owner_block(flow)
            last = max((self.block_of[node] for node in flow.readers), default=-1)
            if 0 <= owner < last:
                rows.append((0, owner, owner + 1, last))
                names.append(name)
        return _pack(rows, names)

    def _owner_block(self, flow: Flow) -> int:
        return -1 if flow.owner is None else self.block_of[flow.owner]

    def _paint(self, rectangles: Rectangles, weights: Sequence[int]) -> Ints:
        """Table of the summed weights of all rectangles that cover [i, j]."""
        corners, names = rectangles
        table = numpy.zeros((self.num_blocks + 1, self.num_blocks + 2), dtype=numpy.int64)
        if len(names):
            amounts = numpy.array(weights, dtype=numpy.int64)[names]
            top, bottom, left, right = corners.T
            numpy.add.at(table, (top, left), amounts)
            numpy.add.at(table, (bottom + 1, left), -amounts)
            numpy.add.at(table, (top, right + 1), -amounts)
            numpy.add.at(table, (bottom + 1, right + 1), amounts)
        return table.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]

    def _sum_nodes(self, values: NDArray[Number]) -> NDArray[Number]:
        """Table of sums over the nodes of every interval."""
        ends = numpy.zeros(self.num_blocks + 1, dtype=values.dtype)
        ends[1:] = numpy.cumsum([values[list(block)].sum() for block in self.blocks])
        table: NDArray[Number] = ends[None, :] - ends[:-1, None]
        return table


def _pack(rows: Sequence[tuple[int, int, int, int]], names: Sequence[int]) -> Rectangles:
    return (
        numpy.array(rows, dtype=numpy.int64).reshape(-1, 4),
        numpy.array(names, dtype=numpy.int64),
    )
