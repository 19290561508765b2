"""Shapes of cuts: quotient edges, cycles, and paths that leave a part and come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pair = tuple[int, int]


def group_edges(edges: Iterable[Pair], part_by_node: Sequence[int]) -> dict[Pair, Pair]:
    """Pairs of different parts with an edge between them, each with one such edge."""
    quotient: dict[Pair, Pair] = {}
    for src, dst in edges:
        if part_by_node[src] != part_by_node[dst]:
            quotient.setdefault((part_by_node[src], part_by_node[dst]), (src, dst))
    return quotient


def find_cycle(num_nodes: int, edges: Iterable[Pair]) -> list[int] | None:
    """The nodes of one cycle in the order of its edges, the smallest first; or None."""
    successors: list[list[int]] = [[] for _ in range(num_nodes)]
    num_before = [0] * num_nodes
    for src, dst in edges:
        successors[src].append(dst)
        num_before[dst] += 1
    ready = [node for node in range(num_nodes) if not num_before[node]]
    for node in ready:
        for after in successors[node]:
            num_before[after] -= 1
            if not num_before[after]:
                ready.append(after)
    if len(ready) == num_nodes:
        return None
    return _trace_back(successors, set(range(num_nodes)) - set(ready))


def _trace_back(successors: Sequence[Sequence[int]], left: set[int]) -> list[int]:
    """Every node left over has a predecessor left over: walking back must meet itself."""
    before: dict[int, int] = {}
    for node in left:
        for after in successors[node]:
            if after in left:
                before[after] = node
    path: list[int] = []
    place: dict[int, int] = {}
    node = min(left)
    while node not in place:
        place[node] = len(path)
        path.append(node)
        node = before[node]
    cycle = path[place[node] :][::-1]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def find_detour(edges: Sequence[Pair], part_by_node: Sequence[int], part: int) -> Pair | None:
    """A path that leaves a part and comes back: its first and its last node outside; or None.

    Edges point to higher nodes, so one pass in the order of their sources follows every path.
    """
    left_through: dict[int, int] = {}
    for src, dst in sorted(edges):
        inside_src, inside_dst = part_by_node[src] == part, part_by_node[dst] == part
        if inside_src and not inside_dst:
            left_through.setdefault(dst, dst)
        elif not inside_src and src in left_through:
            if inside_dst:
                return left_through[src], src
            left_through.setdefault(dst, left_through[src])
    return None
