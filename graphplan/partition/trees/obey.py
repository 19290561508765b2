"""Obeying pins: drafts are changed until every pinned node runs alone on its device's group.

A pinned node's part has exactly the device of the pin. So groups of several devices give up those
that are pinned, and parts are cut, along the topological order, around nodes that are pinned
elsewhere; a part that is cut along this order never closes a cycle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part


def obey_pins(problem: Problem, parts: Sequence[Part]) -> list[Part]:
    """The parts, cut and moved so that the pins hold."""
    if not problem.pins:
        return list(parts)
    wanted = set(problem.pins.values())
    return [piece for part in parts for piece in _cut_part(problem, _release(part, wanted))]


def _release(part: Part, wanted: set[int]) -> Part:
    """A part whose group has no pinned device, unless that is its only one."""
    if len(part.devices) == 1:
        return part
    left = [device for device in part.devices if device not in wanted] or [min(part.devices)]
    count = max(n for n in range(1, len(left) + 1) if part.micro_batch_size % n == 0)
    return msgspec.structs.replace(part, devices=tuple(left[:count]))


def _cut_part(problem: Problem, part: Part) -> Iterator[Part]:
    """Runs of nodes that may be on the same devices."""
    pins = problem.pins
    home = part.devices[0] if len(part.devices) == 1 else None

    def place(node: int) -> int | None:
        pinned = pins.get(node)
        return None if pinned == home else pinned

    for device, nodes in itertools.groupby(part.nodes, key=place):
        devices = part.devices if device is None else (device,)
        yield msgspec.structs.replace(part, nodes=tuple(nodes), devices=devices)
