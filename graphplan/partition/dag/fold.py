"""Folding: trivial nodes join a neighbour, so that they do not hide the shape of a graph.

A node whose only reader, or only source, is another node can join that one: no path leads around
the edge between them, so the folded graph has no cycle, and no two other nodes become ordered that
were not. Edges that other paths imply do not count. What is left of the trivial nodes (a shared
mask, a final sum of losses) are *riders*: they tie branches together, take next to no time, and are
placed after everything else.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from graphplan.cost.work import measure_times
from graphplan.nouns.problem import Problem
from graphplan.partition.dag.order import Order, Pairs, reduce_edges, restrict_order

MAX_SHARE = 0.005
"""Weight (see work.py) that the trivial members of one group may have."""
MAX_RIDERS = 48
MAX_RIDERS_SHARE = 0.02

Groups = tuple[tuple[int, ...], ...]
"""Nodes that stay together, group by group."""


@dataclasses.dataclass(frozen=True)
class Folded:
    """Groups of nodes in a topological order, their order, and the groups left to ride along."""

    groups: Groups
    order: Order
    riders: Groups = ()


def fold_problem(
    problem: Problem, *, max_share: float = MAX_SHARE, with_riders: bool = True
) -> Folded:
    """Groups of a problem's nodes; nodes pinned to different devices stay apart."""
    weight = measure_times(problem).weight.tolist()
    folded = fold_nodes(
        problem.num_nodes, problem.edges, weight, max_share=max_share, pins=problem.pins
    )
    return set_riders_aside(folded, weight, max_share=max_share) if with_riders else folded


def fold_nodes(
    num_nodes: int,
    edges: Sequence[tuple[int, int]],
    work: Sequence[float],
    *,
    max_share: float = MAX_SHARE,
    pins: Mapping[int, int] | None = None,
) -> Folded:
    """Fold until no trivial node has a single neighbour on one side, or its group is full."""
    limit = max_share * sum(work)
    order = reduce_edges(num_nodes, edges)
    groups = _Groups(num_nodes, work, pins or {})
    while True:
        groups.wire(order.covers)
        if not groups.fold(limit):
            return Folded(tuple(tuple(sorted(each)) for each in groups.members), order)
        edges = groups.number_in_order()
        order = reduce_edges(len(groups.members), edges)


def set_riders_aside(
    folded: Folded, work: Sequence[float], *, max_share: float = MAX_SHARE
) -> Folded:
    """Take out the trivial groups with several neighbours, lightest first, while they are few."""
    total = sum(work)
    weight = [sum(work[node] for node in group) for group in folded.groups]
    before, after = folded.order.predecessors(), folded.order.successors()
    joins = [g for g in range(len(weight)) if len(before[g]) != 1 and len(after[g]) != 1]
    riders: set[int] = set()
    taken = 0.0
    for group in sorted(joins, key=lambda g: weight[g])[: min(MAX_RIDERS, len(weight) - 1)]:
        taken += weight[group]
        if weight[group] > max_share * total or taken > MAX_RIDERS_SHARE * total:
            break
        riders.add(group)
    kept = [g for g in range(len(weight)) if g not in riders]
    return Folded(
        groups=tuple(folded.groups[g] for g in kept),
        order=restrict_order(folded.order, kept),
        riders=tuple(folded.groups[g] for g in sorted(riders)),
    )


class _Groups:
    """Groups under contraction; a group is known by its position in a topological order."""

    def __init__(self, num_nodes: int, work: Sequence[float], pins: Mapping[int, int]) -> None:
        self.members: list[list[int]] = [[node] for node in range(num_nodes)]
        self.work = list(work)
        self.extra = [0.0] * num_nodes
        """Work of the trivial members that a group holds already."""
        self.pins = [{pins[node]} if node in pins else set() for node in range(num_nodes)]
        self.before: list[set[int]] = []
        self.after: list[set[int]] = []

    def wire(self, covers: Pairs) -> None:
        """Take the neighbours from a transitive reduction."""
        self.before = [set() for _ in self.members]
        self.after = [set() for _ in self.members]
        for a, b in covers:
            self.after[a].add(b)
            self.before[b].add(a)

    def fold(self, limit: float) -> bool:
        """Contract edges at trivial groups, lightest group first; whether there was one."""
        folded = False
        waiting = [(work, group) for group, work in enumerate(self.work) if work <= limit]
        heapq.heapify(waiting)
        while waiting:
            work, group = heapq.heappop(waiting)
            if not self.members[group] or work != self.work[group]:
                continue
            other = self._choose_host(group, limit)
            if other is not None:
                folded = True
                kept = self._join(group, other)
                if self.work[kept] <= limit:
                    heapq.heappush(waiting, (self.work[kept], kept))
        return folded

    def _choose_host(self, group: int, limit: float) -> int | None:
        """The neighbour to join: the emptiest, then the lightest, then the reader."""
        sides = (self.before[group], self.after[group])
        ends = {next(iter(side)) for side in sides if len(side) == 1}
        allowed = [
            other
            for other in ends
            if self.extra[other] + self.extra[group] + min(self.work[group], self.work[other])
            <= limit
            and len(self.pins[group] | self.pins[other]) < 2
        ]
        return min(allowed, key=lambda v: (self.extra[v], self.work[v], -v), default=None)

    def _join(self, group: int, other: int) -> int:
        """Contract the edge between two groups; the one with more neighbours stays."""
        size = [len(self.before[v]) + len(self.after[v]) for v in (group, other)]
        kept, gone = (group, other) if size[0] > size[1] else (other, group)
        self.extra[kept] += self.extra[gone] + min(self.work[kept], self.work[gone])
        self.work[kept] += self.work[gone]
        self.pins[kept] |= self.pins[gone]
        self.members[kept] += self.members[gone]
        self.members[gone] = []
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            for neighbour in mine[gone]:
                theirs[neighbour].discard(gone)
                if neighbour != kept:
                    theirs[neighbour].add(kept)
                    mine[kept].add(neighbour)
            mine[gone] = set()
            mine[kept].discard(gone)
        return kept

    def number_in_order(self) -> list[tuple[int, int]]:
        """Renumber the groups in a topological order, the earliest node first; their edges."""
        missing = {g: len(self.before[g]) for g, nodes in enumerate(self.members) if nodes}
        ready = [(min(self.members[g]), g) for g, count in missing.items() if count == 0]
        heapq.heapify(ready)
        position: dict[int, int] = {}
        while ready:
            _, group = heapq.heappop(ready)
            position[group] = len(position)
            for later in self.after[group]:
                missing[later] -= 1
                if missing[later] == 0:
                    heapq.heappush(ready, (min(self.members[later]), later))
        assert len(position) == len(missing), "folding closed a cycle"
        edges = [(position[a], position[b]) for a in position for b in self.after[a]]
        for name in ("members", "work", "extra", "pins"):
            values = getattr(self, name)
            setattr(self, name, [values[group] for group in position])
        return edges
