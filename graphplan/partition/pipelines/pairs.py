"""Costs of every stage between two nested down-sets, in the form of Intervals.

Tables are [i, j] over down-sets sorted by size. Let n(D) be how many of a tensor's readers (or of a
storage's savers, or a weight's users) lie in D. A stage touches it exactly when n changes between
its two down-sets, so that what a stage does *not* touch is a sum over equal counts: a product of
two matrices that have a column for every tensor and count. Workspace alone is rounded up, to one of
a few levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy
from numpy.typing import NDArray

from graphplan.cost.model import bytes_per_trained_element
from graphplan.nouns.problem import Floats, Ints, Problem
from graphplan.partition.dag.downsets import list_members
from graphplan.partition.pipelines.remember import remember
from graphplan.partition.pipelines.sums import IntervalBytes, StageSums

NUM_LEVELS = 8
"""Levels of workspace that are told apart."""

Bools = NDArray[numpy.bool_]


class Pairs(StageSums):
    """The stages between down-sets of a problem whose nodes stand in groups."""

    def __init__(
        self, problem: Problem, groups: Sequence[Sequence[int]], downsets: Sequence[int]
    ) -> None:
        self.problem, self.groups = problem, groups
        self.downsets = sorted(downsets, key=lambda d: (d.bit_count(), d))
        self.num_blocks = len(self.downsets) - 1
        self.held = numpy.zeros((len(downsets), problem.num_nodes))
        """[down-set, node]: 1 where the node is in the down-set."""
        for i, downset in enumerate(self.downsets):
            for group in list_members(downset):
                self.held[i, list(groups[group])] = 1

    def nodes_of(self, first: int, last: int) -> tuple[int, ...]:
        """Nodes of the stage between two down-sets, sorted."""
        between = self.downsets[last] & ~self.downsets[first]
        return tuple(sorted(node for g in list_members(between) for node in self.groups[g]))

    @remember
    def legal(self) -> Bools:
        """Whether the second down-set holds the first one and more."""
        sizes = self.held.sum(axis=1)
        inside = self.held @ self.held.T == sizes[:, None]
        legal: Bools = (inside & (sizes[:, None] < sizes[None, :]))[:-1]
        return legal

    # -- memory ----------------------------------------------------------------------------------

    @remember
    def memory(self, size: int, *, recompute: bool) -> IntervalBytes:
        """Bytes at a sample size (its index)."""
        problem = self.problem
        per_element = sum(bytes_per_trained_element(problem.training, problem.element_bytes))
        fixed = (
            self._sum_nodes(problem.held_bytes)
            + self._touch(self._tie_counts, [tie.held_bytes for tie in problem.ties])
            + per_element * self.trained_elements
            + sum(self.transfers(size))
            + self._workspace(size)
        )
        saved = self._sum_nodes(problem.saved_bytes[size]) + self._touch(
            self._save_counts, [save.bytes_by_size[size] for save in problem.saves]
        )
        if recompute:
            fixed = fixed + saved
            saved = self._enter([flow.bytes_by_size[size] for flow in problem.flows])
        saved = numpy.where(self._needs_backward, saved, 0)
        return IntervalBytes(_whole(fixed), _whole(saved))

    @cached_property
    def trained_elements(self) -> Ints:
        """Elements of trainable weights, tied ones once."""
        ties = self._touch(self._tie_counts, [tie.trained_elements for tie in self.problem.ties])
        return _whole(self._sum_nodes(self.problem.trained_elements) + ties)

    def _buffer_weights(self, size: int) -> list[int]:
        return [
            flow.bytes_by_size[size] * (2 if flow.needs_grad else 1) for flow in self.problem.flows
        ]

    def _workspace(self, size: int) -> Floats:
        """The largest of the stage's nodes, rounded up to a level."""
        needed = self.problem.workspace_bytes[size]
        levels = numpy.unique(numpy.quantile(needed, numpy.linspace(0, 1, NUM_LEVELS + 1)[1:]))
        table = numpy.zeros((self.num_blocks, self.num_blocks + 1))
        below = 0.0
        for level in levels:
            has_one = self._sum_nodes((needed > below).astype(float)) > 0
            table = numpy.where(has_one, level, table)
            below = level
        return table

    # -- transfers -------------------------------------------------------------------------------

    @remember
    def transfers(self, size: int) -> tuple[Ints, Ints]:
        """Bytes that come in and go out for one micro-batch, both directions."""
        weights = self._buffer_weights(size)
        owned = [
            0 if flow.owner is None else weight
            for flow, weight in zip(self.problem.flows, weights, strict=True)
        ]
        return _whole(self._enter(owned)), _whole(self._leave(weights))

    def _enter(self, weights: Sequence[int]) -> Floats:
        """Flows with a reader in the stage and the owner before it."""
        counts, amounts = self._reader_counts, numpy.array(weights, dtype=float)
        had = self._owned_or_given
        untouched = (counts.columns * (had * amounts)[:, counts.items]) @ counts.columns.T
        total: Floats = ((had @ amounts)[:, None] - untouched)[:-1]
        return total

    def _leave(self, weights: Sequence[int]) -> Floats:
        """Flows with the owner in the stage and a reader after it."""
        amounts = numpy.array(weights, dtype=float)
        open_after = self._owned * ~self._all_read * amounts
        total: Floats = (open_after.sum(axis=1)[None, :] - self._owned @ open_after.T)[:-1]
        return total

    @cached_property
    def _owned(self) -> Floats:
        """[down-set, flow]: 1 where the owner is in the down-set."""
        owned = numpy.zeros((len(self.downsets), len(self.problem.flows)))
        for f, flow in enumerate(self.problem.flows):
            if flow.owner is not None:
                owned[:, f] = self.held[:, flow.owner]
        return owned

    @cached_property
    def _owned_or_given(self) -> Floats:
        """The same, with 1 for what the user feeds."""
        given = numpy.array([flow.owner is None for flow in self.problem.flows], dtype=float)
        had: Floats = numpy.maximum(self._owned, given)
        return had

    @cached_property
    def _all_read(self) -> Bools:
        """[down-set, flow]: whether all readers are in the down-set."""
        read = numpy.zeros((len(self.downsets), len(self.problem.flows)), dtype=numpy.bool_)
        for f, flow in enumerate(self.problem.flows):
            read[:, f] = self.held[:, list(flow.readers)].all(axis=1)
        return read

    # -- counting --------------------------------------------------------------------------------

    @cached_property
    def _reader_counts(self) -> _Counts:
        return _Counts(self.held, [flow.readers for flow in self.problem.flows])

    @cached_property
    def _save_counts(self) -> _Counts:
        return _Counts(self.held, [save.savers for save in self.problem.saves])

    @cached_property
    def _tie_counts(self) -> _Counts:
        return _Counts(self.held, [tie.readers for tie in self.problem.ties])

    def _touch(self, counts: _Counts, weights: Sequence[int]) -> Floats:
        """Weights of the items that a stage touches."""
        amounts = numpy.array(weights, dtype=float)
        untouched = (counts.columns * amounts[counts.items]) @ counts.columns.T
        touched: Floats = (amounts.sum() - untouched)[:-1]
        return touched

    def _sum_nodes(self, values: Floats | Ints) -> Floats:
        """Sums over the nodes of every stage."""
        sums = self.held @ values
        table: Floats = sums[None, :] - sums[:-1, None]
        return table


class _Counts:
    """Columns [down-set, (item, count)]: 1 where so many of the item's nodes are inside."""

    def __init__(self, held: Floats, items: Sequence[Sequence[int]]) -> None:
        columns, names = [numpy.zeros((len(held), 0))], []
        for name, nodes in enumerate(items):
            inside = held[:, sorted(nodes)].sum(axis=1)
            values = numpy.unique(inside)
            columns.append((inside[:, None] == values[None, :]).astype(float))
            names += [name] * len(values)
        self.columns: Floats = numpy.concatenate(columns, axis=1)
        self.items = numpy.array(names, dtype=numpy.int64)


def _whole(table: Floats) -> Ints:
    return numpy.rint(table).astype(numpy.int64)
