"""Cuts: the sums and costs of every stage between two cuts of a graph, as tables.

A cut is a set of items (groups of nodes) with all that comes before them; a stage is what cut j
adds to cut i. Tables are [i, j] and hold what model.py collects for that set of nodes, so that they
equal the price of each stage; only `legal` entries mean anything. Two kinds of cuts:

- `OrderCuts`, the prefixes of an order of items. What a stage touches (saved storages, tied
  weights, tensors that cross its border) changes at a few borders only, so that each adds its
  amount to a few rectangles of the table: four corners, then two cumulative sums.

      order  a b c d, a storage that b and d save: stages [i, j) that hold it are
                                  [0..1] x [2..4]   those whose first saver is b
                                  [2..3] x [4..4]   those that begin behind b and hold d

- `DownsetCuts`, any down-sets (downsets.py).

Items may be a part of the problem's nodes: what lies outside is before or behind all of them.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from graphplan.cost.sums import StageCosts, StageSums, price_sums
from graphplan.nouns.problem import Floats, Flow, Ints

if TYPE_CHECKING:
    from graphplan.cost.model import CostModel

Bools = NDArray[numpy.bool_]
Rectangles = tuple[Ints, Ints]
"""[n, 4] of first and last start, first and last end; and whose amount each of them carries."""
Types = tuple[int, ...]
MEAN: Types = ()
"""In place of device types: the mean device, for searches that do not know yet which they get."""


class Cuts(abc.ABC):
    """Tables of the stages between cuts of a graph, or of a part of it."""

    num_cuts: int

    def __init__(self, cost: CostModel, items: Sequence[Sequence[int]]) -> None:
        self.cost, self.problem = cost, cost.problem
        self.items = tuple(map(tuple, items))
        self.item_of = {node: i for i, item in enumerate(self.items) for node in item}
        problem = self.problem
        self.flows = [problem.flows[i] for i in self._list_touched(problem.flows_by_node)]
        self.saves = [problem.saves[i] for i in self._list_touched(problem.saves_by_node)]
        self.ties = [problem.ties[i] for i in self._list_touched(problem.ties_by_node)]
        self._sums: dict[tuple[int, Types], StageSums] = {}
        self._costs: dict[tuple[int, Types, bool, int], StageCosts] = {}

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return len(self.items)

    def sums(self, size: int, types: Types = MEAN) -> StageSums:
        """Sums of all stages at a position of `sample_sizes`, on the slowest of these types."""
        if (size, types) not in self._sums:
            self._sums[size, types] = self._collect(size, types)
        return self._sums[size, types]

    def costs(
        self, size: int, types: Types = MEAN, *, recompute: bool = False, replicas: int = 1
    ) -> StageCosts:
        """Costs of all stages by themselves, at the usual level of ZeRO; what replicas send each
        other is not in them."""
        key = (size, types, recompute, replicas)
        if key not in self._costs:
            kinds = types or range(len(self.problem.cluster.types))
            sums = self.sums(size, types)
            self._costs[key] = price_sums(
                self.problem,
                sums,
                kinds,
                recompute=recompute,
                sharing=self.cost.usual_sharing(replicas),
            )
        return self._costs[key]

    @cached_property
    def num_pins(self) -> Ints:
        """Different devices to which nodes of each stage are pinned."""
        counts = numpy.zeros((self.num_cuts, self.num_cuts), dtype=numpy.int64)
        for device in set(self.problem.pins.values()):
            pinned = numpy.zeros(self.problem.num_nodes, dtype=numpy.int64)
            pinned[[node for node, d in self.problem.pins.items() if d == device]] = 1
            counts += self._add_up(pinned) > 0
        return counts

    # -- what each kind of cuts answers ----------------------------------------------------------

    @property
    @abc.abstractmethod
    def legal(self) -> Bools:
        """Whether there is a stage between the cuts."""

    @abc.abstractmethod
    def nodes_of(self, first: int, last: int) -> tuple[int, ...]:
        """The nodes of a stage, sorted."""

    @abc.abstractmethod
    def _add_up(self, values: Any) -> Any:
        """Sums of a row by node over the nodes of every stage."""

    @abc.abstractmethod
    def _find_largest(self, values: Ints) -> Ints:
        """The largest value of a node of every stage, or somewhat more."""

    @abc.abstractmethod
    def _sum_saves(self, amounts: Sequence[int]) -> Ints:
        """Amounts of the saved storages that every stage touches."""

    @abc.abstractmethod
    def _sum_ties(self, amounts: Sequence[int]) -> Ints:
        """Amounts of the tied weights that every stage reads."""

    @abc.abstractmethod
    def _sum_entering(self, amounts: Sequence[int]) -> Ints:
        """Amounts of the flows with a reader in the stage and their owner elsewhere."""

    @abc.abstractmethod
    def _sum_leaving(self, amounts: Sequence[int]) -> Ints:
        """Amounts of the flows with their owner in the stage and a reader elsewhere."""

    # -- what they have in common ----------------------------------------------------------------

    def _list_touched(self, by_node: Sequence[Sequence[int]]) -> list[int]:
        return sorted({i for node in self.item_of for i in by_node[node]})

    def _collect(self, size: int, types: Types) -> StageSums:
        problem, flows, ties = self.problem, self.flows, self.ties
        forward, inputs, weights = self._time_stages(size, types)
        made = [flow.owner is not None for flow in flows]
        sizes = [flow.bytes_by_size[size] for flow in flows]
        buffers = [flow.buffer_bytes(size) * own for flow, own in zip(flows, made, strict=True)]
        received = [num_bytes * own for num_bytes, own in zip(sizes, made, strict=True)]
        saved = [save.bytes_by_size[size] for save in self.saves]
        return StageSums(
            forward_s=forward,
            input_grad_s=inputs,
            weight_grad_s=weights,
            own_elements=self._add_up(problem.trained_elements),
            tied_elements=self._sum_ties([tie.trained_elements for tie in ties]),
            held_bytes=self._add_up(problem.held_bytes)
            + self._sum_ties([tie.held_bytes for tie in ties]),
            saved_bytes=self._add_up(problem.saved_bytes[size]) + self._sum_saves(saved),
            saved_for_weights_bytes=self._add_up(problem.saved_for_weights_bytes[size]),
            workspace_bytes=self._find_largest(problem.workspace_bytes[size]),
            entering_bytes=self._sum_entering(sizes),
            received_bytes=self._sum_entering(received),
            entering_buffer_bytes=self._sum_entering(buffers),
            leaving_buffer_bytes=self._sum_leaving(buffers),
            trains=self._add_up(problem.needs_backward.astype(numpy.int64)) > 0,
            returns=self._sum_entering([int(flow.needs_grad) for flow in flows]) > 0,
        )

    def _time_stages(self, size: int, types: Types) -> tuple[Floats, Floats, Floats]:
        """Forward, input-gradient and weight-gradient seconds."""
        if types == MEAN:
            mean = self.cost.mean_times
            rows = (mean.forward_s[size], mean.input_grad_s[size], mean.weight_grad_s[size])
            forward, inputs, weights = map(self._add_up, rows)
            return forward, inputs, weights
        problem = self.problem
        forward, inputs, weights = (
            numpy.max([self._add_up(array[kind, size]) for kind in types], axis=0)
            for array in (problem.forward_s, problem.input_grad_s, problem.weight_grad_s)
        )
        return forward, inputs, weights

    def _add_items(self, values: Any) -> Any:
        """Sums of a row by node over the nodes of every item."""
        found = [values[list(item)].sum() for item in self.items]
        return numpy.array(found, dtype=values.dtype)

    def _peak_items(self, values: Ints) -> Ints:
        """The largest value of a node of every item."""
        peaks = [int(values[list(item)].max(initial=0)) for item in self.items]
        return numpy.array(peaks, dtype=numpy.int64)


class OrderCuts(Cuts):
    """The prefixes of an order of items: a stage is an interval [i, j) of them."""

    def __init__(self, cost: CostModel, items: Sequence[Sequence[int]]) -> None:
        super().__init__(cost, items)
        self.num_cuts = len(self.items) + 1

    @cached_property
    def legal(self) -> Bools:
        """Whether the interval has an item."""
        return ~numpy.tri(self.num_cuts, dtype=numpy.bool_)

    def nodes_of(self, first: int, last: int) -> tuple[int, ...]:
        """The nodes of an interval, sorted."""
        return tuple(sorted(node for item in self.items[first:last] for node in item))

    @cached_property
    def signature(self) -> int:
        """Equal for orders with equal tables: branches that differ in their names only."""
        problem = self.problem
        order = [node for item in self.items for node in item]
        times = (problem.forward_s, problem.input_grad_s, problem.weight_grad_s)
        sizes = (problem.workspace_bytes, problem.saved_bytes, problem.saved_for_weights_bytes)
        once = (problem.trained_elements, problem.held_bytes, problem.needs_backward)
        columns = [array[..., order].tobytes() for array in (*times, *sizes, *once)]
        tensors = (
            sorted(
                (
                    self._enter(flow),
                    self._leave(flow),
                    flow.bytes_by_size,
                    flow.needs_grad,
                    flow.owner is None,
                )
                for flow in self.flows
            ),
            sorted((self._touch(save.savers), save.bytes_by_size) for save in self.saves),
            [(self._touch(tie.readers), tie.weight) for tie in self.ties],
        )
        return hash((tuple(map(len, self.items)), *columns, repr(tensors)))

    # -- rectangles ------------------------------------------------------------------------------

    def _touch(self, nodes: Iterable[int], after: int = -1) -> list[tuple[int, int, int, int]]:
        """Intervals that begin behind item `after` and hold one of the nodes, by the first one."""
        found = []
        for place in sorted({self.item_of[node] for node in nodes if node in self.item_of}):
            if place > after:
                found.append((after + 1, place, place + 1, self.num_items))
                after = place
        return found

    def _enter(self, flow: Flow) -> list[tuple[int, int, int, int]]:
        """Intervals with a reader of the flow and without its owner."""
        owner = -1 if flow.owner is None else self.item_of.get(flow.owner, -1)
        return self._touch(flow.readers, owner)

    def _leave(self, flow: Flow) -> list[tuple[int, int, int, int]]:
        """Intervals with the owner of the flow and not all of its readers."""
        owner = None if flow.owner is None else self.item_of.get(flow.owner)
        if owner is None:
            return []
        last = max((self.item_of.get(node, self.num_items) for node in flow.readers), default=-1)
        return [(0, owner, owner + 1, last)] if last > owner else []

    @cached_property
    def _save_rectangles(self) -> Rectangles:
        return _pack([self._touch(save.savers) for save in self.saves])

    @cached_property
    def _tie_rectangles(self) -> Rectangles:
        return _pack([self._touch(tie.readers) for tie in self.ties])

    @cached_property
    def _enter_rectangles(self) -> Rectangles:
        return _pack(list(map(self._enter, self.flows)))

    @cached_property
    def _leave_rectangles(self) -> Rectangles:
        return _pack(list(map(self._leave, self.flows)))

    def _sum_saves(self, amounts: Sequence[int]) -> Ints:
        return self._paint(self._save_rectangles, amounts)

    def _sum_ties(self, amounts: Sequence[int]) -> Ints:
        return self._paint(self._tie_rectangles, amounts)

    def _sum_entering(self, amounts: Sequence[int]) -> Ints:
        return self._paint(self._enter_rectangles, amounts)

    def _sum_leaving(self, amounts: Sequence[int]) -> Ints:
        return self._paint(self._leave_rectangles, amounts)

    def _paint(self, rectangles: Rectangles, amounts: Sequence[int]) -> Ints:
        """The summed amounts of all rectangles that cover [i, j]."""
        corners, names = rectangles
        table = numpy.zeros((self.num_cuts + 1, self.num_cuts + 1), dtype=numpy.int64)
        if len(names):
            chosen = numpy.array(amounts, dtype=numpy.int64)[names]
            top, bottom, left, right = corners.T
            numpy.add.at(table, (top, left), chosen)
            numpy.add.at(table, (bottom + 1, left), -chosen)
            numpy.add.at(table, (top, right + 1), -chosen)
            numpy.add.at(table, (bottom + 1, right + 1), chosen)
        return table.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]

    # -- sums and maxima -------------------------------------------------------------------------

    def _add_up(self, values: Any) -> Any:
        ends = numpy.zeros(self.num_cuts, dtype=values.dtype)
        ends[1:] = numpy.cumsum(self._add_items(values))
        return ends[None, :] - ends[:, None]

    def _find_largest(self, values: Ints) -> Ints:
        peaks = self._peak_items(values)
        table = numpy.zeros((self.num_cuts, self.num_cuts), dtype=numpy.int64)
        for start in range(self.num_items):
            table[start, start + 1 :] = numpy.maximum.accumulate(peaks[start:])
        return table


def _pack(found: Sequence[Sequence[tuple[int, int, int, int]]]) -> Rectangles:
    rows = [rectangle for rectangles in found for rectangle in rectangles]
    names = [name for name, rectangles in enumerate(found) for _ in rectangles]
    return (
        numpy.array(rows, dtype=numpy.int64).reshape(-1, 4),
        numpy.array(names, dtype=numpy.int64),
    )
