"""Partial order of a DAG: strict ancestors as bit sets, and the edges that no path replaces.

Nodes are numbers in a topological order. A bit set is an int whose bit v stands for node v: with
10,000 nodes all ancestors take about 6 MB, and unions and tests run at the speed of memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from graphplan.nouns.dag import Neighbours, collect_neighbours

Pairs = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Order:
    """A partial order and its transitive reduction (Hasse diagram)."""

    before: tuple[int, ...]
    """Bit set of the strict ancestors of every node."""
    covers: Pairs
    """Edges of the transitive reduction, sorted."""

    @property
    def num_nodes(self) -> int:
        """How many nodes are ordered."""
        return len(self.before)

    def predecessors(self) -> Neighbours:
        """Nodes right before each node."""
        return collect_neighbours(self.num_nodes, ((dst, src) for src, dst in self.covers))

    def successors(self) -> Neighbours:
        """Nodes right after each node."""
        return collect_neighbours(self.num_nodes, self.covers)


def reduce_edges(num_nodes: int, edges: Iterable[tuple[int, int]]) -> Order:
    """The order that `edges` (src < dst) generate."""
    sources: list[list[int]] = [[] for _ in range(num_nodes)]
    for src, dst in edges:
        if not 0 <= src < dst < num_nodes:
            raise ValueError(f"edge {src} -> {dst} does not point to a later node")
        sources[dst].append(src)
    before: list[int] = []
    covers: list[tuple[int, int]] = []
    for node, found in enumerate(sources):
        reached = 0
        # A later source may have an earlier one among its ancestors, never the other way round.
        for src in sorted(set(found), reverse=True):
            if not reached >> src & 1:
                covers.append((src, node))
                reached |= before[src] | 1 << src
        before.append(reached)
    return Order(before=tuple(before), covers=tuple(sorted(covers)))


def restrict_order(order: Order, kept: Sequence[int]) -> Order:
    """The order of some of the nodes (sorted), renumbered; paths through the others still count."""
    wanted = 0
    for node in kept:
        wanted |= 1 << node
    position = {node: i for i, node in enumerate(kept)}
    pairs = (
        (position[src], position[node])
        for node in kept
        for src in list_maximal(order, order.before[node] & wanted)
    )
    return reduce_edges(len(kept), pairs)


def list_maximal(order: Order, nodes: int) -> list[int]:
    """Nodes of a bit set that are before no other node of it, the latest first."""
    found = []
    while nodes:
        last = nodes.bit_length() - 1
        found.append(last)
        nodes &= ~(order.before[last] | 1 << last)
    return found
