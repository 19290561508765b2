"""Riders: trivial nodes that were set aside (see fold.py) are given to finished parts.

A rider joins the part of a neighbour, as long as no path leads from one to the other through a
third part; among several, the choice that keeps the graph of parts shallowest. Or it becomes a
small part of its own on the devices of that neighbour: then a join of many branches does not make
the branch that hosts it wait for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part


def join_riders(
    problem: Problem,
    parts: Sequence[Part],
    riders: Sequence[tuple[int, ...]],
    *,
    apart: bool = False,
) -> list[Part]:
    """Parts that hold the riders too; `apart` makes a part of its own of each group of them."""
    if not riders:
        return list(parts)
    units = _Units(problem, parts, riders)
    for rider in range(len(riders)):
        encloser = units.find_encloser(rider)
        if encloser is not None:
            units.merge(rider, encloser)
    free = units.list_in_turn()
    if not apart:
        for rider in free:
            units.merge(rider, units.choose_host(rider))
        free = []
    grown = [
        msgspec.structs.replace(part, nodes=tuple(sorted(units.nodes[p])))
        for p, part in enumerate(parts)
    ]
    hosts = [units.find_near(rider) for rider in free]
    small = [
        msgspec.structs.replace(parts[host], nodes=riders[rider])
        for rider, host in zip(free, hosts, strict=True)
    ]
    return [*grown, *small]


class _Units:
    """The graph of parts, numbered from 0, and of riders that are still alone, numbered below 0."""

    def __init__(
        self, problem: Problem, parts: Sequence[Part], riders: Sequence[tuple[int, ...]]
    ) -> None:
        self.num_parts, self.riders = len(parts), riders
        self.nodes = {p: list(part.nodes) for p, part in enumerate(parts)}
        unit_of = {node: p for p, part in enumerate(parts) for node in part.nodes}
        unit_of |= {node: -1 - r for r, nodes in enumerate(riders) for node in nodes}
        units = sorted(set(unit_of.values()))
        self.before: dict[int, set[int]] = {unit: set() for unit in units}
        self.after: dict[int, set[int]] = {unit: set() for unit in units}
        for src, dst in problem.edges:
            if unit_of[src] != unit_of[dst]:
                self.after[unit_of[src]].add(unit_of[dst])
                self.before[unit_of[dst]].add(unit_of[src])

    def find_encloser(self, rider: int) -> int | None:
        """The part that has nodes both before and after a rider, if any: it must take it."""
        unit = -1 - rider
        both = self._find_parts(unit, self.before) & self._find_parts(unit, self.after)
        return min(both, default=None)

    def find_near(self, rider: int) -> int:
        """The smallest part right before a rider, else right after it, else anywhere."""
        unit = -1 - rider
        near = self._find_parts(unit, self.before) or self._find_parts(unit, self.after)
        return min(near or range(self.num_parts), key=lambda p: (len(self.nodes[p]), p))

    def list_in_turn(self) -> list[int]:
        """Riders after some part in order, then the others against it.

        So a rider has no other riders between itself and the parts on one side, and the last part
        before it, or else the first one after it, can take it.
        """
        alone = [r for r in range(len(self.riders)) if -1 - r in self.after]
        later = [r for r in alone if self._find_parts(-1 - r, self.before)]
        return [*later, *(r for r in reversed(alone) if r not in later)]

    def choose_host(self, rider: int) -> int:
        """The part to join: the shallowest graph, then the smallest part."""
        unit = -1 - rider
        near = self._find_parts(unit, self.before) | self._find_parts(unit, self.after)
        nearest = sorted(near) or range(self.num_parts)
        hosts = [host for host in nearest if self._is_legal(unit, host)]
        return min(
            hosts,
            key=lambda host: (self._measure_depth(unit, host), len(self.nodes[host]), host),
        )

    def merge(self, rider: int, host: int) -> None:
        """Make a rider a member of a part."""
        unit = -1 - rider
        self.nodes[host] += self.riders[rider]
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            for other in mine.pop(unit):
                theirs[other].discard(unit)
                if other != host:
                    theirs[other].add(host)
                    mine[host].add(other)

    def _find_parts(self, unit: int, step: dict[int, set[int]]) -> set[int]:
        """The nearest parts in one direction, through other riders."""
        found, waiting, seen = set(), [unit], {unit}
        while waiting:
            for other in step[waiting.pop()] - seen:
                seen.add(other)
                if other >= 0:
                    found.add(other)
                else:
                    waiting.append(other)
        return found

    def _is_legal(self, unit: int, host: int) -> bool:
        """Whether every path between the two is a single edge."""
        return not self._reaches(unit, host) and not self._reaches(host, unit)

    def _reaches(self, src: int, dst: int) -> bool:
        """Whether a path of at least two edges leads from src to dst."""
        waiting = list(self.after[src] - {dst})
        seen = set(waiting)
        while waiting:
            unit = waiting.pop()
            if dst in self.after[unit]:
                return True
            fresh = self.after[unit] - seen
            seen |= fresh
            waiting.extend(fresh)
        return False

    def _measure_depth(self, unit: int, host: int) -> int:
        """The longest path of parts if the two were one."""
        depth: dict[int, int] = {}

        def visit(start: int) -> int:
            waiting = [start]
            while waiting:
                each = waiting[-1]
                others = self.after[each] if each != host else self.after[unit] | self.after[host]
                later = {host if other == unit else other for other in others} - {each}
                missing = [other for other in later if other not in depth]
                if missing:
                    waiting += missing
                else:
                    weight = 1 if each >= 0 else 0
                    depth[each] = weight + max((depth[other] for other in later), default=0)
                    waiting.pop()
            return depth[start]

        return max(visit(each) for each in self.after if each != unit)
