"""Placement: which devices run which part.

Parts come in the order of the graph, so that neighbours in the list exchange most. Consecutive
devices keep them and their replicas in one node where they fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part


def place_parts(
    problem: Problem,
    wanted: Sequence[tuple[tuple[int, ...], int, bool]],
    micro_batch_size: int,
) -> list[Part]:
    """Parts of (nodes, number of devices, recompute) on consecutive devices."""
    parts = []
    first = 0
    for nodes, count, recompute in wanted:
        devices = tuple(range(first, first + count))
        parts.append(
            Part(
                nodes=nodes,
                devices=devices,
                micro_batch_size=micro_batch_size,
                recompute=recompute,
            )
        )
        first += count
    return parts
