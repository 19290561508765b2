"""Packing: the device groups of a draft are laid out anew, so that few of them span two nodes.

Replicas reduce their gradients over the slowest link among them: a group that spans nodes pays for
it in every step. Large groups choose first (best fit, decreasing); among the nodes that have room
for it, a group goes where most of what it exchanges is, then where it leaves least room.

    groups of 2 2 2 2 2 4 2 along a chain, on nodes of 6, 6 and 4 devices
    as they come     0 1 | 2 3 | 4 5     6 7 | 8 9 | 10 11 - 12 13 | 14 15
    packed           0 1 | 2 3 | 4 5     6 7 | 8 9 | 10 11   12 13 14 15     the last two exchanged
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Draft

Group = tuple[int, ...]
"""Devices of one or several parts."""


def pack_groups(problem: Problem, draft: Draft) -> Draft | None:
    """The draft with its groups packed; None where that changes nothing.

    Devices of different types are not exchanged, nor are those that the user has chosen.
    """
    cluster = problem.cluster
    if len(cluster.nodes) == 1 or len(cluster.types) > 1 or problem.pins:
        return None
    rooms: dict[int, list[int]] = defaultdict(list)
    for device in cluster.devices:
        rooms[device.node].append(device.index)
    moved = _assign_devices(measure_traffic(problem, draft), rooms)
    if all(old == new for old, new in moved.items()):
        return None
    return tuple(msgspec.structs.replace(part, devices=moved[part.devices]) for part in draft)


def measure_traffic(problem: Problem, draft: Draft) -> dict[Group, dict[Group, int]]:
    """Bytes of a sample that every pair of groups exchanges; groups in the order of the draft."""
    group_of = {node: part.devices for part in draft for node in part.nodes}
    found: dict[Group, dict[Group, int]] = {part.devices: defaultdict(int) for part in draft}
    for flow in problem.flows:
        if flow.owner is None:
            continue
        own = group_of[flow.owner]
        for other in {group_of[reader] for reader in flow.readers} - {own}:
            found[own][other] += flow.bytes_by_size[-1]
            found[other][own] += flow.bytes_by_size[-1]
    return found


def _assign_devices(
    traffic: Mapping[Group, Mapping[Group, int]], rooms: dict[int, list[int]]
) -> dict[Group, Group]:
    """New devices of every group; `rooms` are the devices of each node and get used up."""
    moved: dict[Group, Group] = {}
    node_of: dict[Group, int] = {}

    def exchanged(group: Group, node: int) -> int:
        return sum(num for other, num in traffic[group].items() if node_of.get(other) == node)

    for group in sorted(traffic, key=len, reverse=True):
        size = len(group)
        fitting = [node for node, room in rooms.items() if len(room) >= size]
        if fitting:
            node = max(fitting, key=lambda n: (exchanged(group, n), -len(rooms[n])))
            node_of[group] = node
            taken, rooms[node] = rooms[node][:size], rooms[node][size:]
        else:
            taken = []
            for node in sorted(rooms, key=lambda n: -len(rooms[n])):
                missing = size - len(taken)
                taken += rooms[node][:missing]
                rooms[node] = rooms[node][missing:]
        moved[group] = tuple(sorted(taken))
    return moved
