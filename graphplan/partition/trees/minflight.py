"""GraphPipe's dynamic program (arXiv 2406.17145, section 5): fewest samples in flight.

For a target time per sample, every module of the series-parallel decomposition is solved for every
number of devices, from the sink to the source: the memory of a stage depends on the samples in
flight, and these on what is downstream.

- base: an interval of items as one stage with r replicas, if it meets the target and fits;
- series: the rest of the chain first, whose samples in flight feed the stage before it;
- parallel: neighbouring branches share the devices, one part whole as a stage or each on its own;
  the larger number of samples in flight counts.

Fewer samples in flight are never worse upstream, so that one value for each state suffices. Prime
modules are cut as the chain of their items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.cuts import OrderCuts
from graphplan.cost.inflight import step_in_flight
from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Floats, Ints
from graphplan.partition.assemble import Part
from graphplan.partition.trees.shape import Shape

Timed = tuple[Part, float]
"""A part and its time per sample."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Parts in a topological order, each with as many devices as it gets, and the time per sample
    of the slowest."""

    parts: tuple[Part, ...]
    slowest_s: float


@dataclasses.dataclass(frozen=True)
class Downstream:
    """What follows a module: samples in flight and micro-batch size; 0 and 0 at the end."""

    in_flight: float
    size: float


@dataclasses.dataclass(frozen=True)
class _Front:
    """The best of a module for every number of devices 0..D; infinity where there is none."""

    in_flight: Floats
    size: Floats
    """Micro-batch size of the source stage."""


@dataclasses.dataclass(frozen=True)
class _Table:
    """Intervals of a line with one number of replicas and one micro-batch size."""

    num_replicas: int
    micro_batch_size: int
    seconds_per_sample: Floats
    max_in_flight: Floats


class FlightSearch:
    """The dynamic program for one set of micro-batch sizes; tables are shared by all targets."""

    def __init__(
        self,
        cost: CostModel,
        shape: Shape,
        *,
        micro_batch_sizes: Sequence[int],
        memory_bytes: float,
    ) -> None:
        self.cost = cost
        self.shape = shape
        self.num_devices = len(cost.problem.cluster.devices)
        self.memory_bytes = memory_bytes
        self.is_uniform = len(micro_batch_sizes) == 1
        self.pairs = [
            (replicas, size)
            for size in micro_batch_sizes
            for replicas in range(1, self.num_devices + 1)
            if size % replicas == 0
        ]
        self.tables_by_line: dict[int, list[_Table]] = {}
        self.target = 0.0
        self.memo: dict[tuple[int, Downstream], tuple[_Front, list[Ints]]] = {}

    def search(self, target_s: float) -> Found | None:
        """Stages of which none is slower than the target per sample, if there are."""
        self.target = target_s
        self.memo = {}
        end = Downstream(0.0, 0.0)
        front = self._solve(self.shape, end)[0]
        if not numpy.isfinite(front.in_flight).any():
            return None
        fewest = front.in_flight == front.in_flight.min()
        stages = self._collect(self.shape, end, int(numpy.flatnonzero(fewest)[-1]))
        return Found(tuple(part for part, _ in stages), max(seconds for _, seconds in stages))

    # -- fronts ----------------------------------------------------------------------------------

    def _solve(self, shape: Shape, end: Downstream) -> tuple[_Front, list[Ints]]:
        key = (shape.twin, end)  # equal branches are solved once
        if key not in self.memo:
            solve = self._solve_parallel if shape.kind == "parallel" else self._solve_chain
            self.memo[key] = solve(shape, end)
        return self.memo[key]

    def _solve_chain(self, shape: Shape, end: Downstream) -> tuple[_Front, list[Ints]]:
        """The suffixes of a chain, the shortest first."""
        count, width = shape.line.num_items, self.num_devices + 1
        in_flight = numpy.full((count + 1, width), numpy.inf)
        size = numpy.zeros((count + 1, width))
        in_flight[count, 0], size[count, 0] = end.in_flight, end.size
        picks = [numpy.zeros((count, width), dtype=numpy.int64) for _ in range(3)]
        for start in range(count - 1, -1, -1):
            for table in self._tables(shape.line):
                self._try_stages(table, start, in_flight, size, picks)
            inner = shape.inner[start]
            if inner is not None:
                self._try_inside(inner, start, in_flight, size, picks)
        return _Front(in_flight[0], size[0]), picks

    def _try_stages(
        self, table: _Table, start: int, in_flight: Floats, size: Floats, picks: list[Ints]
    ) -> None:
        """Stages from `start`, followed by the best of the rest.

        A shorter rest never has more in flight, so that the longest stage that meets the target is
        best; shorter ones are tried where it does not fit.
        """
        spent = table.num_replicas
        places = numpy.arange(spent, in_flight.shape[1])
        end = start + int(
            numpy.searchsorted(table.seconds_per_sample[start, start + 1 :], self.target, "right")
        )
        while end > start and len(places):
            after, sizes = in_flight[end, places - spent], size[end, places - spent]
            own = self._step(table.micro_batch_size, after, sizes)
            fits = own <= table.max_in_flight[start, end]
            chosen = fits & (own < in_flight[start, places])
            taken = places[chosen]
            in_flight[start, taken] = own[chosen]
            size[start, taken] = table.micro_batch_size
            picks[0][start, taken] = end
            picks[1][start, taken] = spent
            picks[2][start, taken] = table.micro_batch_size
            places = places[~fits]
            end -= 1

    def _step(self, size: int, after: Floats, sizes: Floats) -> Floats:
        """The in-flight rule; with equal sizes it adds one micro-batch a stage."""
        return after + size if self.is_uniform else step_in_flight(size, after, sizes)

    def _try_inside(
        self, inner: Shape, start: int, in_flight: Floats, size: Floats, picks: list[Ints]
    ) -> None:
        """Cut the item itself, whatever number of devices the rest has."""
        for rest in numpy.flatnonzero(numpy.isfinite(in_flight[start + 1])):
            end = Downstream(float(in_flight[start + 1, rest]), float(size[start + 1, rest]))
            front, _ = self._solve(inner, end)
            spent = numpy.arange(1, self.num_devices + 1 - rest)
            places = rest + spent
            better = front.in_flight[spent] < in_flight[start, places]
            places, spent = places[better], spent[better]
            in_flight[start, places] = front.in_flight[spent]
            size[start, places] = front.size[spent]
            for pick, chosen in zip(picks, (start + 1, spent, 0), strict=True):
                pick[start, places] = chosen

    def _solve_parallel(self, shape: Shape, end: Downstream) -> tuple[_Front, list[Ints]]:
        """The first k branches, k growing; the last part of them is one branch or one stage."""
        count, width = shape.line.num_items, self.num_devices + 1
        in_flight = numpy.full((count + 1, width), numpy.inf)
        size = numpy.zeros((count + 1, width))
        in_flight[0, 0] = 0.0
        picks = [numpy.zeros((count + 1, width), dtype=numpy.int64) for _ in range(3)]
        for last in range(1, count + 1):
            for first in range(last):
                for spent, flight, own, pick in self._list_parts(shape, end, first, last):
                    value = numpy.maximum(in_flight[first, :-spent], flight)
                    better = numpy.flatnonzero(value < in_flight[last, spent:])
                    places = better + spent
                    in_flight[last, places] = value[better]
                    size[last, places] = numpy.maximum(size[first, better], own)
                    for each, chosen in zip(picks, (first, spent, pick), strict=True):
                        each[last, places] = chosen
        return _Front(in_flight[count], size[count]), picks

    def _list_parts(
        self, shape: Shape, end: Downstream, first: int, last: int
    ) -> list[tuple[int, float, float, int]]:
        """Devices, in-flight samples, micro-batch size and pick of one part of the branches.

        The pick is the micro-batch size of a single stage, 0 for a branch cut inside.
        """
        found = []
        after, size_after = numpy.array([[end.in_flight]]), numpy.array([[end.size]])
        for table in self._tables(shape.line):
            own = float(step_in_flight(table.micro_batch_size, after, size_after)[0, 0])
            fits = own <= table.max_in_flight[first, last]
            if fits and table.seconds_per_sample[first, last] <= self.target:
                size = table.micro_batch_size
                found.append((table.num_replicas, own, float(size), size))
        inner = shape.inner[first] if last == first + 1 else None
        if inner is not None:
            front, _ = self._solve(inner, end)
            found += [
                (int(spent), float(front.in_flight[spent]), float(front.size[spent]), 0)
                for spent in numpy.flatnonzero(numpy.isfinite(front.in_flight))
                if spent
            ]
        return found

    # -- tables ----------------------------------------------------------------------------------

    def _tables(self, line: OrderCuts) -> list[_Table]:
        key = line.signature
        if key not in self.tables_by_line:
            self.tables_by_line[key] = [self._make_table(line, *pair) for pair in self.pairs]
        return self.tables_by_line[key]

    def _make_table(self, line: OrderCuts, num_replicas: int, micro_batch_size: int) -> _Table:
        """Time per sample with reduction and update spread over the batch, and what fits."""
        problem = self.cost.problem
        size = problem.size_index[micro_batch_size // num_replicas]
        sums, costs = line.sums(size), line.costs(size, replicas=num_replicas)
        left_s = self.cost.reductions.left_over(
            range(num_replicas), sums.own_elements, costs.backward_s
        )
        room = self.memory_bytes - costs.fixed_bytes - costs.workspace_bytes
        saved = costs.saved_bytes
        most = numpy.where(saved > 0, room // numpy.maximum(saved, 1), numpy.inf)
        return _Table(
            num_replicas=num_replicas,
            micro_batch_size=micro_batch_size,
            seconds_per_sample=costs.busy_s / micro_batch_size
            + (left_s + costs.update_s) / problem.training.batch_size,
            max_in_flight=numpy.where(room >= 0, most, -1.0) * micro_batch_size,
        )

    # -- the answer ------------------------------------------------------------------------------

    def _collect(self, shape: Shape, end: Downstream, num_devices: int) -> list[Timed]:
        """The parts of a module that got so many devices, with their times per sample."""
        if shape.kind == "parallel":
            return self._collect_parallel(shape, end, num_devices)
        picks = self._solve(shape, end)[1]
        steps: list[tuple[int, int, int]] = []
        start, left = 0, num_devices
        while start < shape.line.num_items:
            stop, spent, size = (int(pick[start, left]) for pick in picks)
            steps.append((start, spent, size))
            start, left = stop, left - spent
        found: list[Timed] = []
        stop, after = shape.line.num_items, end
        for start, spent, size in reversed(steps):
            made = self._make_parts(shape, start, stop, spent, size, after)
            found = made + found
            stop, after = start, self._look_upstream(shape, start, spent, size, after)
        return found

    def _make_parts(
        self, shape: Shape, first: int, last: int, spent: int, size: int, after: Downstream
    ) -> list[Timed]:
        if size:
            tables = self._tables(shape.line)
            table = next(t for t in tables if (t.num_replicas, t.micro_batch_size) == (spent, size))
            seconds = float(table.seconds_per_sample[first, last])
            nodes, devices = shape.line.nodes_of(first, last), tuple(range(spent))
            return [(Part(nodes=nodes, devices=devices, micro_batch_size=size), seconds)]
        inner = shape.inner[first]
        assert inner is not None
        return self._collect(inner, after, spent)

    def _look_upstream(
        self, shape: Shape, start: int, spent: int, size: int, after: Downstream
    ) -> Downstream:
        """What the stages before `start` see."""
        if size:
            own = step_in_flight(size, numpy.array([after.in_flight]), numpy.array([after.size]))
            return Downstream(float(own[0]), float(size))
        inner = shape.inner[start]
        assert inner is not None
        front, _ = self._solve(inner, after)
        return Downstream(float(front.in_flight[spent]), float(front.size[spent]))

    def _collect_parallel(self, shape: Shape, end: Downstream, num_devices: int) -> list[Timed]:
        picks = self._solve(shape, end)[1]
        found: list[Timed] = []
        last, left = shape.line.num_items, num_devices
        while last:
            first, spent, size = (int(pick[last, left]) for pick in picks)
            found = self._make_parts(shape, first, last, spent, size, end) + found
            last, left = first, left - spent
        return found
