"""The dynamic program of the `graph` planner: shortest fill and drain under a cycle limit.

A step of M micro-batches takes about (M - 1) cycles, the cycle being that of the busiest stage, and
once the way of a micro-batch through all stages and back. So for a limit on the cycle, the program
finds for every module and every number of device units the stages with the shortest way; the caller
tries several limits. Along a chain ways add up, of parallel branches the longest counts. From the
sink to the source, a suffix has four labels:

    ends_s       until the last stage of the suffix has also reduced and updated its weights
    around_s     forward through the suffix and back
    forward_s    forward only
    depth        stages on the longest path: micro-batches in flight of the stage before, less one

    stage x before a suffix:   around' = f + b + messages + around
                               ends'   = max(f + message + ends, around' + closing of x)

The first one is minimised, the others go along. Memory is that of the cost model with depth + 1
micro-batches in flight; a stage that does not fit recomputes if that helps.
"""

from __future__ import annotations

import dataclasses

import numpy

from graphplan.cost.cuts import Cuts
from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Floats, Ints
from graphplan.partition.assemble import Part
from graphplan.partition.trees.shape import Shape
from graphplan.partition.trees.stagetable import (
    CLOSING,
    ENTERING,
    FORWARD,
    MESSAGE,
    RECOMPUTING,
    RESTING,
    SAVED,
    SECONDS,
    Setting,
    StageTable,
    make_tables,
)

MAX_EXACT_DEPTH = 2
"""Deeper ones are told apart in powers of two only: memory is checked with the larger one."""

ENDS, AROUND, AHEAD, DEPTH = range(4)
"""Rows of labels: ends_s, around_s, forward_s, depth."""


@dataclasses.dataclass(frozen=True)
class _Solved:
    """A module with all numbers of units; infinite ends where there is nothing."""

    front: Floats
    """[label, units]"""
    labels: Floats
    """[label, cut, units], of a chain"""
    picks: Ints
    """[3, cut, units]: next cut, units, and 0 for a stage, 1 for one that recomputes, 2 + item for
    an item cut inside."""


class TreeSearch:
    """The program for one micro-batch size and one size of device units."""

    def __init__(self, cost: CostModel, shape: Shape, setting: Setting) -> None:
        self.cost, self.shape, self.setting = cost, shape, setting
        self.width = setting.num_units + 1
        self.tables_by_twin: dict[int, list[StageTable]] = {}
        self.limit_s = numpy.inf
        self.memo: dict[tuple[int, int], _Solved] = {}

    def search(self, limit_s: float) -> list[Part] | None:
        """The parts with the shortest way that keep the limit, in a topological order; each has
        as many devices as it gets, whichever these are."""
        self.limit_s = limit_s
        self.memo = {}
        ends_s = self._solve(self.shape, 0).front[ENDS]
        units = int(ends_s.argmin())
        return self._collect(self.shape, 0, units) if numpy.isfinite(ends_s[units]) else None

    def _solve(self, shape: Shape, depth: int) -> _Solved:
        key = (shape.twin, self._round_depth(depth))
        if key not in self.memo:
            solve = self._solve_parallel if shape.kind == "parallel" else self._solve_chain
            self.memo[key] = solve(shape, key[1])
        return self.memo[key]

    def _round_depth(self, depth: int) -> int:
        if self.setting.roomy:
            return 0
        return depth if depth <= MAX_EXACT_DEPTH else 1 << (depth - 1).bit_length()

    def _tables(self, shape: Shape) -> list[StageTable]:
        if shape.twin not in self.tables_by_twin:
            self.tables_by_twin[shape.twin] = make_tables(shape.cuts, self.setting)
        return self.tables_by_twin[shape.twin]

    # -- chains ----------------------------------------------------------------------------------

    def _solve_chain(self, shape: Shape, depth: int) -> _Solved:
        """Suffixes of a chain, or what is left after a cut of a lattice, the shortest first."""
        tables, steps = self._tables(shape), shape.list_steps()
        last = tables[0].entries.shape[0] - 1
        labels = numpy.zeros((4, last + 1, self.width))
        labels[ENDS] = numpy.inf
        labels[ENDS, last, 0], labels[DEPTH, last, 0] = 0.0, depth
        picks = numpy.zeros((3, last + 1, self.width), dtype=numpy.int64)
        for start in range(last - 1, -1, -1):
            for table in tables:
                self._try_stages(table, start, labels, picks)
            for end, item, inner in steps.get(start, ()):
                self._try_inside(inner, (start, end, item), labels, picks)
        return _Solved(_shorten(labels[:, 0], shape.latency_share), labels, picks)

    def _try_stages(self, table: StageTable, start: int, labels: Floats, picks: Ints) -> None:
        """Stages from `start` to every cut within the limit, followed by the best of the rest."""
        ends = table.list_ends(start, self.limit_s)
        spent = table.num_units
        if not len(ends) or spent >= self.width:
            return
        entry = table.entries[start][:, ends, None]
        after = labels[:, ends, : self.width - spent]
        ahead = entry[FORWARD] + entry[MESSAGE]
        around = entry[SECONDS] + 2 * entry[MESSAGE] + after[AROUND]
        total = numpy.maximum(ahead + after[ENDS], around + entry[CLOSING])
        again = None if self.setting.roomy else self._check_memory(entry, after[DEPTH], total)
        best = total.argmin(axis=0)
        value = total.min(axis=0)
        better = (value < labels[ENDS, start, spent:]).nonzero()[0]
        if not len(better):
            return
        rows, places = best[better], better + spent
        labels[ENDS, start, places] = value[better]
        labels[AROUND, start, places] = around[rows, better]
        labels[AHEAD, start, places] = ahead[rows, 0] + after[AHEAD, rows, better]
        labels[DEPTH, start, places] = after[DEPTH, rows, better] + 1
        picks[0, start, places] = ends[rows]
        picks[1, start, places] = spent
        picks[2, start, places] = 0 if again is None else again[rows, better]

    def _check_memory(self, entry: Floats, depth: Floats, total: Floats) -> Ints | None:
        """Rule out what does not fit; 1 for what fits, and meets the limit, if it recomputes."""
        limit = self.setting.memory_bytes
        in_flight = numpy.minimum(depth + 1, self.setting.num_micro_batches)
        full = entry[RESTING] + in_flight * entry[SAVED] > limit
        if not full.any():
            return None
        helps = entry[RECOMPUTING] + in_flight * entry[ENTERING] <= limit
        helps &= entry[SECONDS] + entry[FORWARD] <= self.limit_s
        again: Ints = (full & helps & self.cost.problem.allow_recompute).astype(numpy.int64)
        total += again * entry[FORWARD]
        total[full & (again == 0)] = numpy.inf
        return again

    def _try_inside(
        self, inner: Shape, step: tuple[int, int, int], labels: Floats, picks: Ints
    ) -> None:
        """Cut an item itself, whatever number of units the rest has."""
        start, end, item = step
        for rest in numpy.isfinite(labels[ENDS, end, :-1]).nonzero()[0]:
            after = labels[:, end, rest]
            front = self._solve(inner, int(after[DEPTH])).front[:, 1 : self.width - rest]
            total = numpy.maximum(front[AHEAD] + after[ENDS], front[ENDS] + after[AROUND])
            better = (total < labels[ENDS, start, rest + 1 :]).nonzero()[0]
            if not len(better):
                continue
            places = rest + 1 + better
            labels[ENDS, start, places] = total[better]
            labels[AROUND, start, places] = front[AROUND, better] + after[AROUND]
            labels[AHEAD, start, places] = front[AHEAD, better] + after[AHEAD]
            labels[DEPTH, start, places] = front[DEPTH, better]
            picks[0, start, places] = end
            picks[1, start, places] = better + 1
            picks[2, start, places] = 2 + item

    # -- parallel branches -----------------------------------------------------------------------

    def _solve_parallel(self, shape: Shape, depth: int) -> _Solved:
        """The first k branches, k growing; the last part of them is one branch or one stage."""
        count, width = shape.line.num_items, self.width
        nothing = (numpy.inf, 0.0, 0.0, float(depth))
        rows = [[nothing] * width for _ in range(count + 1)]
        rows[0][0] = (0.0, 0.0, 0.0, float(depth))
        picks = numpy.zeros((3, count + 1, width), dtype=numpy.int64)
        for last in range(1, count + 1):
            for first in range(last - 1, -1, -1):
                parts = self._list_parts(shape, depth, first, last)
                if not parts and last - first > 1:
                    break  # a larger part is slower still
                for spent, found, kind in parts:
                    for units in range(width - spent):
                        ends_s = max(rows[first][units][ENDS], found[ENDS])
                        if ends_s < rows[last][units + spent][ENDS]:
                            joined = map(max, rows[first][units], found)
                            rows[last][units + spent] = tuple(joined)  # type: ignore[assignment]
                            picks[:, last, units + spent] = first, spent, kind
        return _Solved(numpy.array(rows[count]).T, numpy.empty(0), picks)

    def _list_parts(
        self, shape: Shape, depth: int, first: int, last: int
    ) -> list[tuple[int, tuple[float, ...], int]]:
        """Units, labels and kind of the ways to run branches first..last-1 by themselves."""
        found: list[tuple[int, tuple[float, ...], int]] = []
        for table in self._tables(shape):
            entry: list[float] = table.entries[first, :, last].tolist()
            kind = self._check_part(entry, depth)
            if kind is not None:
                ahead = entry[FORWARD] + entry[MESSAGE]
                around = entry[SECONDS] + 2 * entry[MESSAGE] + kind * entry[FORWARD]
                ends_s = max(ahead, around + entry[CLOSING])
                found.append((table.num_units, (ends_s, around, ahead, depth + 1.0), kind))
        inner = shape.inner[first] if last == first + 1 else None
        if inner is not None:
            columns = self._solve(inner, depth).front.T.tolist()
            found += [
                (units, tuple(column), 2 + first)
                for units, column in enumerate(columns)
                if column[ENDS] < numpy.inf
            ]
        return found

    def _check_part(self, entry: list[float], depth: int) -> int | None:
        """0 if a stage meets the limit and fits, 1 if it does when it recomputes, else None."""
        limit = self.setting.memory_bytes
        if entry[SECONDS] > self.limit_s:
            return None
        in_flight = min(depth + 1, self.setting.num_micro_batches)
        if self.setting.roomy or entry[RESTING] + in_flight * entry[SAVED] <= limit:
            return 0
        fits = entry[RECOMPUTING] + in_flight * entry[ENTERING] <= limit
        fast = entry[SECONDS] + entry[FORWARD] <= self.limit_s
        return 1 if fits and fast and self.cost.problem.allow_recompute else None

    # -- the answer ------------------------------------------------------------------------------

    def _collect(self, shape: Shape, depth: int, units: int) -> list[Part]:
        """The stages of a module that got so many units."""
        solved = self._solve(shape, depth)
        cuts = shape.cuts
        found: list[Part] = []
        if shape.kind == "parallel":
            last = shape.line.num_items
            while last:
                first, spent, kind = solved.picks[:, last, units].tolist()
                found = self._expand(shape, cuts, (first, last), spent, kind, depth) + found
                last, units = first, units - spent
            return found
        start, end = 0, solved.picks.shape[1] - 1
        while start < end:
            stop, spent, kind = solved.picks[:, start, units].tolist()
            below = int(solved.labels[DEPTH, stop, units - spent])
            found += self._expand(shape, cuts, (start, stop), spent, kind, below)
            start, units = stop, units - spent
        return found

    def _expand(
        self,
        shape: Shape,
        cuts: Cuts,
        ends: tuple[int, int],
        spent: int,
        kind: int,
        depth: int,
    ) -> list[Part]:
        if kind < 2:
            setting = self.setting
            return [
                Part(
                    nodes=cuts.nodes_of(*ends),
                    devices=tuple(range(spent * setting.unit)),
                    micro_batch_size=setting.micro_batch_size,
                    recompute=kind == 1,
                )
            ]
        inner = shape.inner[kind - 2]
        assert inner is not None
        return self._collect(inner, depth, spent)


def _shorten(front: Floats, share: float) -> Floats:
    """The labels of a bundle of branches, through which a micro-batch waits for a share only."""
    shortened = front.copy()
    shortened[ENDS] -= (1 - share) * front[AROUND]
    shortened[AROUND:DEPTH] *= share
    return shortened
