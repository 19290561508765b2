"""Neighbours and heights of a small DAG whose nodes are numbers in topological order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Neighbours = tuple[tuple[int, ...], ...]


def collect_neighbours(num_nodes: int, pairs: Iterable[tuple[int, int]]) -> Neighbours:
    """For each node the sorted, different others that `pairs` (node, other) name."""
    found: list[set[int]] = [set() for _ in range(num_nodes)]
    for node, other in pairs:
        found[node].add(other)
    return tuple(tuple(sorted(each)) for each in found)


def measure_heights(successors: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """h(s): the longest path in edges from each node to a sink; edges point to higher numbers."""
    heights = [0] * len(successors)
    for node in range(len(successors) - 1, -1, -1):
        heights[node] = max((1 + heights[after] for after in successors[node]), default=0)
    return tuple(heights)
