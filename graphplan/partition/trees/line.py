"""Line: times and bytes of every interval of a linear order of items (sets of nodes), as tables.

All tables are indexed [start, end] and hold for the items start..end-1 as one stage. They equal
what the cost model says of that stage; a tensor that is kept or crosses a border once adds a
constant to a rectangle of intervals, so that each table is a sum of rectangles: one pass over the
tensors and two cumulative sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy

from graphplan.cost.model import bytes_per_trained_element
from graphplan.nouns.problem import Floats, Flow, Ints, Problem, Save, Tie
from graphplan.partition.dag.work import MeanTimes

Rectangle = tuple[int, int, int, int]
"""First and last start, first and last end of intervals."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """Bytes of every interval on a replica that sees one number of samples."""

    fixed: Floats
    saved: Floats
    """Of one micro-batch in flight, without recomputation."""
    entering: Floats
    """Of one micro-batch in flight, with recomputation."""
    workspace: Floats
    received: Floats
    """Activations that come from other stages."""


class Line:
    """Interval tables of one linear order; those that depend on the samples are made when asked."""

    def __init__(
        self, problem: Problem, times: MeanTimes, items: Sequence[tuple[int, ...]]
    ) -> None:
        self.problem = problem
        self.times = times
        self.items = tuple(items)
        self.num_items = len(items)
        self.position = {node: i for i, item in enumerate(items) for node in item}
        self._needs_by_size: dict[int, Needs] = {}
        self._times_by_size: dict[int, tuple[Floats, Floats]] = {}

    def nodes(self, start: int, end: int) -> tuple[int, ...]:
        """The nodes of an interval, sorted."""
        return tuple(sorted(node for item in self.items[start:end] for node in item))

    def seconds(self, size: int) -> tuple[Floats, Floats]:
        """Forward and backward seconds of the first k items, k = 0..num_items."""
        if size not in self._times_by_size:
            self._times_by_size[size] = (
                self._accumulate(self.times.forward_s[size]),
                self._accumulate(self.times.backward_s[size]),
            )
        return self._times_by_size[size]

    def needs(self, size: int) -> Needs:
        """Byte tables at one position of `sample_sizes`."""
        if size not in self._needs_by_size:
            self._needs_by_size[size] = self._make_needs(size)
        return self._needs_by_size[size]

    @cached_property
    def trained_elements(self) -> Floats:
        """Elements of trainable weights, tied ones once."""
        found = [(places, tie.trained_elements) for places, tie in self._ties]
        return self._span(self.problem.trained_elements) + self._sum_rectangles(found)

    @cached_property
    def _held(self) -> Floats:
        found = [(places, tie.held_bytes) for places, tie in self._ties]
        return self._span(self.problem.held_bytes) + self._sum_rectangles(found)

    @cached_property
    def _ties(self) -> list[tuple[list[Rectangle], Tie]]:
        """Ties with a reader on the line, with the intervals that read them."""
        wanted = {i for node in self.position for i in self.problem.ties_by_node[node]}
        ties = [self.problem.ties[i] for i in sorted(wanted)]
        return [(self._touching(tie.readers), tie) for tie in ties]

    @cached_property
    def _saves(self) -> list[tuple[list[Rectangle], Save]]:
        """Saves with a saver on the line, with the intervals that keep them."""
        wanted = {i for node in self.position for i in self.problem.saves_by_node[node]}
        saves = [self.problem.saves[i] for i in sorted(wanted)]
        return [(self._touching(save.savers), save) for save in saves]

    def _make_needs(self, size: int) -> Needs:
        problem = self.problem
        kept = [(found, save.bytes_by_size[size]) for found, save in self._saves]
        trains = self._span(problem.needs_backward.astype(numpy.int64)) > 0
        saved = (self._span(problem.saved_bytes[size]) + self._sum_rectangles(kept)) * trains
        made = [each for each in self._crossing if each[2].owner is not None]
        received = self._sum_rectangles((enter, f.bytes_by_size[size]) for enter, _, f in made)
        buffers = self._sum_rectangles(
            (enter + leave, f.bytes_by_size[size] * (2 if f.needs_grad else 1))
            for enter, leave, f in made
        )
        given = self._sum_rectangles(
            (enter, f.bytes_by_size[size]) for enter, _, f in self._crossing if f.owner is None
        )
        each = sum(bytes_per_trained_element(problem.training, problem.element_bytes))
        return Needs(
            fixed=self.trained_elements * each + self._held + buffers,
            saved=saved,
            entering=(received + given) * trains,
            workspace=self._find_maxima(problem.workspace_bytes[size]),
            received=received,
        )

    @cached_property
    def signature(self) -> int:
        """Equal for lines with equal tables: branches that differ in their names only."""
        problem, times = self.problem, self.times
        order = [node for item in self.items for node in item]
        columns = (
            *(array[:, order] for array in (times.forward_s, times.backward_s)),
            *(array[:, order] for array in (problem.workspace_bytes, problem.saved_bytes)),
            *(array[order] for array in (problem.trained_elements, problem.held_bytes)),
            problem.needs_backward[order],
        )
        tensors = (
            sorted(
                (enter, leave, flow.bytes_by_size, flow.needs_grad, flow.owner is None)
                for enter, leave, flow in self._crossing
            ),
            sorted((places, save.bytes_by_size) for places, save in self._saves),
            [(places, tie.weight) for places, tie in self._ties],
        )
        return hash((tuple(map(len, self.items)), *(c.tobytes() for c in columns), repr(tensors)))

    # -- rectangles ------------------------------------------------------------------------------

    @cached_property
    def _crossing(self) -> list[tuple[list[Rectangle], list[Rectangle], Flow]]:
        """Flows with an end on the line, with the intervals that they enter and leave."""
        wanted = sorted({i for node in self.position for i in self.problem.flows_by_node[node]})
        flows = [self.problem.flows[i] for i in wanted]
        return [(self._entered_by(flow), self._left_by(flow), flow) for flow in flows]

    def _touching(self, nodes: Sequence[int]) -> list[Rectangle]:
        """Intervals that contain one of the nodes; each is in exactly one rectangle."""
        return self._split_by_first([p for p in map(self.position.get, nodes) if p is not None], -1)

    def _split_by_first(self, places: Sequence[int], after: int) -> list[Rectangle]:
        """Intervals that start after `after` and contain a place, by the first one in them."""
        found = []
        for place in sorted(set(places)):
            if place > after:
                found.append((after + 1, place, place + 1, self.num_items))
                after = place
        return found

    def _entered_by(self, flow: Flow) -> list[Rectangle]:
        """Intervals with a reader of the flow and without its owner."""
        owner = self.position.get(flow.owner, -1) if flow.owner is not None else -1
        readers = [self.position[node] for node in flow.readers if node in self.position]
        return self._split_by_first(readers, owner)

    def _left_by(self, flow: Flow) -> list[Rectangle]:
        """Intervals with the owner of the flow and not all readers."""
        owner = self.position.get(flow.owner) if flow.owner is not None else None
        if owner is None:
            return []
        last = max(self.position.get(node, self.num_items) for node in flow.readers)
        return [(0, owner, owner + 1, last)] if last > owner else []

    def _sum_rectangles(self, found: Iterable[tuple[list[Rectangle], float]]) -> Floats:
        """A table that adds every amount to the intervals of its rectangles."""
        steps = numpy.zeros((self.num_items + 2, self.num_items + 2))
        corners = [
            (rectangle, amount)
            for rectangles, amount in found
            for rectangle in rectangles
            if amount
        ]
        if corners:
            places = numpy.array([rectangle for rectangle, _ in corners])
            amounts = numpy.array([amount for _, amount in corners], dtype=float)
            first, past = places[:, 0], places[:, 1] + 1
            start, beyond = places[:, 2], places[:, 3] + 1
            numpy.add.at(steps, (first, start), amounts)
            numpy.add.at(steps, (past, start), -amounts)
            numpy.add.at(steps, (first, beyond), -amounts)
            numpy.add.at(steps, (past, beyond), amounts)
        table: Floats = steps.cumsum(0).cumsum(1)[:-1, :-1]
        return table

    # -- sums and maxima -------------------------------------------------------------------------

    def _per_item(self, values: Floats | Ints) -> Floats:
        return numpy.array([values[list(item)].sum() for item in self.items], dtype=float)

    def _accumulate(self, values: Floats | Ints) -> Floats:
        return numpy.concatenate([[0.0], numpy.cumsum(self._per_item(values))])

    def _span(self, values: Floats | Ints) -> Floats:
        """[start, end]: the sum over the items of the interval."""
        total = self._accumulate(values)
        return total[None, :] - total[:, None]

    def _find_maxima(self, values: Ints) -> Floats:
        """[start, end]: the largest value of a node in the interval."""
        peak = [int(values[list(item)].max(initial=0)) for item in self.items]
        table = numpy.zeros((self.num_items + 1, self.num_items + 1))
        for start in range(self.num_items):
            table[start, start + 1 :] = numpy.maximum.accumulate(peak[start:])
        return table
