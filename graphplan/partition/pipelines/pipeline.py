"""Cutting a graph into a pipeline whose stages all take at most a target time.

Cuts are numbered along the graph, 0 for its start; a stage lies between two cuts. They are those of
one order or all down-sets (cost/cuts.py). Dynamic program from the end: fewest[m][i] is the
least number of stages that hold all after cut i on the last m units of the grid, each within the
target and within memory:

    fewest[m][i] = min over r, j of 1 + fewest[m - r][j],  stage (i, j) on units U-m .. U-m+r-1

The stage then has fewest[m][i] micro-batches in flight (1F1B), at most all of the batch. A smaller
number of stages downstream is never worse upstream, hence one value for each state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import numpy
from numpy.typing import NDArray

from graphplan.cost.cuts import Cuts, Types
from graphplan.nouns.problem import Floats, Ints, Problem
from graphplan.partition.pipelines.grid import Grid, Place

Number = TypeVar("Number", numpy.float64, numpy.int64)
NEVER = 1 << 20
"""More stages, or micro-batches in flight, than there can be."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Stages (first cut, last cut, devices) and the slowest one's seconds."""

    stages: tuple[tuple[int, int, tuple[int, ...]], ...]
    bottleneck_s: float


@dataclasses.dataclass(frozen=True)
class ListedCosts:
    """Of every stage of a list: seconds of a micro-batch and of its backward, bytes whatever is in
    flight, bytes of each micro-batch in flight."""

    busy_s: Floats
    backward_s: Floats
    fixed_bytes: Ints
    saved_bytes: Ints


class StageList:
    """All stages of a set of cuts as a list, sorted by their first cut, with what they cost."""

    def __init__(self, cuts: Cuts) -> None:
        self.cuts, self.problem, self.num_blocks = cuts, cuts.problem, cuts.num_cuts - 1
        self.first, self.last = cuts.legal.nonzero()
        self.own_elements = self._pick(cuts.sums(0).own_elements)
        self.num_pins = self._pick(cuts.num_pins)
        self._costs: dict[tuple[Types, int, bool, int], ListedCosts] = {}
        self._moved: dict[int, tuple[Ints, Ints]] = {}

    def costs(self, types: Types, size: int, *, recompute: bool, replicas: int = 1) -> ListedCosts:
        """What the stages cost at a position of the sizes, on the slowest of these types."""
        key = (types, size, recompute, replicas)
        if key not in self._costs:
            costs = self.cuts.costs(size, types, recompute=recompute, replicas=replicas)
            self._costs[key] = ListedCosts(
                self._pick(costs.busy_s),
                self._pick(costs.backward_s),
                self._pick(costs.fixed_bytes + costs.workspace_bytes),
                self._pick(costs.saved_bytes),
            )
        return self._costs[key]

    def moved_bytes(self, size: int) -> tuple[Ints, Ints]:
        """What passes the front and the back of the stages, both directions."""
        if size not in self._moved:
            sums = self.cuts.sums(size)
            ends = (sums.entering_buffer_bytes, sums.leaving_buffer_bytes)
            self._moved[size] = (self._pick(ends[0]), self._pick(ends[1]))
        return self._moved[size]

    def _pick(self, table: NDArray[Number]) -> NDArray[Number]:
        picked: NDArray[Number] = table[self.first, self.last]
        return picked


@dataclasses.dataclass(frozen=True)
class PlaceTables:
    """Stages that fit at a place: cuts, seconds, most micro-batches in flight."""

    first: Ints
    last: Ints
    seconds: Floats
    most: Ints
    recomputed_s: Floats
    recomputed_most: Ints

    def within(self, target_s: float) -> _Within:
        """The stages within the target."""
        plain = numpy.where(self.seconds <= target_s, self.most, 0)
        again = numpy.where(self.recomputed_s <= target_s, self.recomputed_most, 0)
        most = numpy.maximum(plain, again)
        kept = numpy.flatnonzero(most)
        first = self.first[kept]
        row_first = numpy.flatnonzero(numpy.diff(first, prepend=-1))
        return _Within(first[row_first], row_first, self.last[kept], most[kept])

    def find_seconds(self, first: int, last: int, target_s: float) -> float:
        """Of one stage, recomputed if it must be."""
        i = int(numpy.flatnonzero((self.first == first) & (self.last == last))[0])
        plain = self.most[i] > 0 and self.seconds[i] <= target_s
        return float(self.seconds[i] if plain else self.recomputed_s[i])


@dataclasses.dataclass(frozen=True)
class _Within:
    """Stages as a list, sorted by their first cut."""

    starts: Ints
    """The different first cuts."""
    row_first: Ints
    """Where the stages of each of them begin."""
    last: Ints
    """[stage]: last cut"""
    most: Ints
    """[stage]: micro-batches that may be in flight"""

    def extend(self, stages: Ints) -> tuple[Ints, Ints]:
        """By start: the fewest stages with one more in front, and the place in the list."""
        found = stages[self.last] + 1
        found[found > self.most] = NEVER
        # The low bits tell which stage of a row has the least.
        coded = (found.astype(numpy.int64) << 32) | numpy.arange(len(found))
        least = numpy.minimum.reduceat(coded, self.row_first)
        return least >> 32, least & 0xFFFFFFFF


class StageTables:
    """Costs of all stages of one set of cuts on one grid, for one micro-batch size."""

    def __init__(self, stages: StageList, grid: Grid, micro_batch_size: int) -> None:
        self.stages, self.grid, self.size = stages, grid, micro_batch_size
        self.problem, self.num_blocks = stages.problem, stages.num_blocks
        self.count = self.problem.training.batch_size // micro_batch_size
        self._tables_by_place: dict[Place, PlaceTables] = {}

    @cached_property
    def widths(self) -> list[int]:
        """Units that a stage may have: they must divide the micro-batch."""
        return [
            width
            for width in range(1, self.grid.num_units + 1)
            if self.size % self.grid.num_devices(width) == 0
            and self.size // self.grid.num_devices(width) in self.problem.size_index
        ]

    def at(self, place: Place) -> PlaceTables:
        """Tables of a stage at a place."""
        if place not in self._tables_by_place:
            self._tables_by_place[place] = self._make_tables(place)
        return self._tables_by_place[place]

    def _make_tables(self, place: Place) -> PlaceTables:
        stages, index = self.stages, self.problem.size_index[self.size // len(place.devices)]
        # The price of a stage: computing, with its share of the reduction, or its transfers.
        cost = stages.cuts.cost
        front, back = stages.moved_bytes(index)
        moving_s = numpy.maximum(front * place.front_s_per_byte, back * place.back_s_per_byte)
        plain, again = (
            stages.costs(place.types, index, recompute=r, replicas=len(place.devices))
            for r in (False, True)
        )
        left_s, left_again_s = (
            cost.reductions.left_over(place.devices, stages.own_elements, each.backward_s)
            / self.count
            for each in (plain, again)
        )
        most = self._most_in_flight(place, plain)
        most_again = self._most_in_flight(place, again) * self.problem.allow_recompute
        # A pinned node has one device, and no node pinned elsewhere beside it.
        obeys = stages.num_pins <= (1 if len(place.devices) == 1 else 0)
        kept = numpy.flatnonzero(obeys & ((most > 0) | (most_again > 0)))
        return PlaceTables(
            first=stages.first[kept],
            last=stages.last[kept],
            seconds=numpy.maximum(plain.busy_s + left_s, moving_s)[kept],
            most=most[kept],
            recomputed_s=numpy.maximum(again.busy_s + left_again_s, moving_s)[kept],
            recomputed_most=most_again[kept],
        )

    def _most_in_flight(self, place: Place, costs: ListedCosts) -> Ints:
        room, saved = place.memory_bytes - costs.fixed_bytes, costs.saved_bytes
        most = numpy.where(saved > 0, room // numpy.maximum(saved, 1), self.count)
        most = numpy.where(room >= 0, numpy.maximum(most, 0), 0)
        return numpy.where(most >= self.count, NEVER - 1, most).astype(numpy.int32)

    def least_bottleneck(self) -> float:
        """No pipeline has a smaller bottleneck: all work, spread evenly over all replicas."""
        return least_bottleneck(self.problem, self.grid, self.size, self.widths)


def least_bottleneck(problem: Problem, grid: Grid, size: int, widths: Sequence[int]) -> float:
    """Seconds of a micro-batch when all work is spread evenly over all units."""
    backward = numpy.where(problem.needs_backward, problem.input_grad_s + problem.weight_grad_s, 0)
    whole = []
    for width in widths:
        index = problem.size_index[size // grid.num_devices(width)]
        fastest = (problem.forward_s[:, index] + backward[:, index]).sum(axis=1).min()
        whole.append(float(fastest) * width)
    return min(whole, default=math.inf) / grid.num_units


def cut_pipeline(tables: StageTables, target_s: float) -> Cut | None:
    """The pipeline with the fewest stages within the target, None when there is none."""
    grid, num_blocks = tables.grid, tables.num_blocks
    fewest = numpy.full((grid.num_units + 1, num_blocks + 1), NEVER, dtype=numpy.int32)
    fewest[0, num_blocks] = 0
    chosen: dict[tuple[int, int], Ints] = {}
    within: dict[Place, _Within] = {}
    for m in range(1, grid.num_units + 1):
        for width in tables.widths:
            if width > m or fewest[m - width].min() >= NEVER:
                continue
            place = grid.place(grid.num_units - m, width)
            if place not in within:
                within[place] = tables.at(place).within(target_s)
            stages = within[place]
            if len(stages.last):
                least, which = stages.extend(fewest[m - width])
                better = least < fewest[m, stages.starts]
                fewest[m, stages.starts[better]] = least[better]
                last = numpy.full(num_blocks, -1)
                last[stages.starts[better]] = stages.last[which[better]]
                chosen[m, width] = last
    m = int(fewest[:, 0].argmin())
    return None if fewest[m, 0] >= NEVER else _trace_back(tables, chosen, m, target_s)


def _trace_back(
    tables: StageTables, chosen: dict[tuple[int, int], Ints], m: int, target_s: float
) -> Cut:
    grid, first, slowest = tables.grid, 0, 0.0
    stages = []
    while first < tables.num_blocks:
        # The width that improved the state last made it what it is.
        width = max(w for w in tables.widths if (m, w) in chosen and chosen[m, w][first] >= 0)
        last = int(chosen[m, width][first])
        at = tables.at(grid.place(grid.num_units - m, width))
        slowest = max(slowest, at.find_seconds(first, last, target_s))
        stages.append((first, last, grid.devices(grid.num_units - m, width)))
        first, m = last, m - width
    return Cut(tuple(stages), slowest)
