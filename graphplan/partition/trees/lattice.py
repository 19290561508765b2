"""Lattice: the down-sets of a prime module, with the tables of a Line.

A cut of a prime module is a down-set of its items, and a stage is what one cut adds to another that
it contains: every stage of every chain of cuts. Bytes are summed over the nodes of a stage; what
several of its nodes share is counted for each, so that memory is rather over- than underestimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy
from numpy.typing import NDArray

from graphplan.cost.model import bytes_per_trained_element
from graphplan.nouns.problem import Floats, Ints, Problem
from graphplan.partition.dag.modules import list_bits
from graphplan.partition.dag.order import Pairs, reduce_edges
from graphplan.partition.trees.line import Line, Needs


def list_down_sets(num_items: int, edges: Pairs, *, most: int) -> list[int] | None:
    """All down-sets as bit sets, small ones first; None when there are more than `most`."""
    before = reduce_edges(num_items, edges).before
    level, found = {0}, [0]
    while level:
        grown = {
            each | 1 << item
            for each in level
            for item in range(num_items)
            if not each >> item & 1 and not before[item] & ~each
        }
        found += sorted(grown)
        if len(found) > most:
            return None
        level = grown
    return found


class Lattice:
    """Tables over pairs of cuts; see Line for their meaning."""

    def __init__(self, line: Line, cuts: Sequence[int]) -> None:
        self.problem: Problem = line.problem
        self.items = line.items
        self.cuts = tuple(cuts)
        self.num_items = len(cuts) - 1
        """Cuts less one: the first is empty, the last is everything."""
        self._line = line
        self._holds = numpy.array(
            [[each >> item & 1 for item in range(line.num_items)] for each in cuts], dtype=float
        )
        self._needs_by_size: dict[int, Needs] = {}

    @cached_property
    def legal(self) -> NDArray[numpy.bool_]:
        """[i, j]: whether cut j holds cut i and more."""
        inside = self._holds @ self._holds.T
        sizes = self._holds.sum(axis=1)
        legal: NDArray[numpy.bool_] = (inside == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
        return legal

    def list_single_steps(self) -> list[tuple[int, int, int]]:
        """(cut, next cut, item) of every step by one item."""
        position = {each: i for i, each in enumerate(self.cuts)}
        return [
            (i, position[each | 1 << item], item)
            for i, each in enumerate(self.cuts)
            for item in range(len(self.items))
            if not each >> item & 1 and each | 1 << item in position
        ]

    def nodes(self, start: int, end: int) -> tuple[int, ...]:
        """The nodes that cut `end` adds to cut `start`, sorted."""
        added = list_bits(self.cuts[end] & ~self.cuts[start])
        return tuple(sorted(node for item in added for node in self.items[item]))

    def seconds(self, size: int) -> tuple[Floats, Floats]:
        """Forward and backward seconds of every cut."""
        times = self._line.times
        return self._sum(times.forward_s[size]), self._sum(times.backward_s[size])

    def needs(self, size: int) -> Needs:
        """Byte tables at one position of `sample_sizes`."""
        if size not in self._needs_by_size:
            self._needs_by_size[size] = self._make_needs(size)
        return self._needs_by_size[size]

    @cached_property
    def trained_elements(self) -> Floats:
        """Elements of trainable weights."""
        found = numpy.array(self.problem.trained_elements, dtype=float)
        for tie in self.problem.ties:
            found[list(tie.readers)] += tie.trained_elements
        return self._span(found)

    def _make_needs(self, size: int) -> Needs:
        problem = self.problem
        saved = numpy.array(problem.saved_bytes[size], dtype=float)
        for save in problem.saves:
            saved[list(save.savers)] += save.bytes_by_size[size]
        crossing = self._cross(size)
        each = sum(bytes_per_trained_element(problem.training, problem.element_bytes))
        received = numpy.repeat(crossing[:, None], len(crossing), axis=1)
        peak = max(
            (int(problem.workspace_bytes[size, list(i)].max()) for i in self.items), default=0
        )
        return Needs(
            fixed=self.trained_elements * each
            + self._span(problem.held_bytes)
            + 2 * (received + crossing[None, :]),
            saved=self._span(saved * problem.needs_backward),
            entering=received,
            workspace=numpy.full(received.shape, float(peak)),
            received=received,
        )

    def _cross(self, size: int) -> Floats:
        """Bytes of the flows that cross each cut."""
        item_of = {node: i for i, item in enumerate(self.items) for node in item}
        found = numpy.zeros(len(self.cuts))
        for index in {i for node in item_of for i in self.problem.flows_by_node[node]}:
            flow = self.problem.flows[index]
            if flow.owner is None:
                continue
            owner = item_of.get(flow.owner)
            made = self._holds[:, owner] if owner is not None else numpy.ones(len(found))
            inside = sorted({item_of[node] for node in flow.readers if node in item_of})
            wanted = (1 - self._holds[:, inside]).max(axis=1, initial=0.0)
            if len(inside) == 0 or any(node not in item_of for node in flow.readers):
                wanted = numpy.ones(len(found)) if owner is not None else wanted
            found += made * wanted * flow.bytes_by_size[size]
        return found

    def _sum(self, values: Floats | Ints) -> Floats:
        per_item = numpy.array([values[list(item)].sum() for item in self.items], dtype=float)
        total: Floats = self._holds @ per_item
        return total

    def _span(self, values: Floats | Ints) -> Floats:
        total = self._sum(values)
        return total[None, :] - total[:, None]
