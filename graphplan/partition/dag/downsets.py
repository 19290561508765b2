"""Down-sets of a DAG: sets of nodes that hold all predecessors of their members.

Cutting a DAG into ordered parts is choosing a chain of down-sets. A down-set is an int whose bit v
stands for node v; nodes are numbered in a topological order, so that the members of a down-set,
taken in the order of their numbers, form a down-set at every step. Hence each down-set is reached
exactly once if it grows only by nodes above its highest one.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.dag import Neighbours


def enumerate_downsets(
    predecessors: Neighbours,
    successors: Neighbours,
    *,
    limit: int,
) -> list[int] | None:
    """All down-sets, the empty one first; None when there are more than `limit`."""
    needed = [sum(1 << u for u in before) for before in predecessors]
    start = [v for v, before in enumerate(predecessors) if not before]
    found = [0]
    stack = [(0, start)]
    while stack:
        members, ready = stack.pop()
        for place, node in enumerate(ready):
            grown = members | 1 << node
            found.append(grown)
            if len(found) > limit:
                return None
            fresh = [u for u in successors[node] if needed[u] & ~grown == 0]
            stack.append((grown, sorted([*ready[place + 1 :], *fresh])))
    return found


def list_prefixes(order: Sequence[int]) -> list[int]:
    """The down-sets along a topological order, the empty and the full one included."""
    found = [0]
    for node in order:
        found.append(found[-1] | 1 << node)
    return found


def list_members(downset: int) -> tuple[int, ...]:
    """The nodes of a set, sorted."""
    members = []
    while downset:
        low = downset & -downset
        members.append(low.bit_length() - 1)
        downset ^= low
    return tuple(members)
