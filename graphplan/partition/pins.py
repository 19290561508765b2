"""Pins: nodes that the user placed run on their device, in a stage that has no other device.

Planners that know nothing of pins let finished parts exchange their devices (`apply_pins`). Drafts
of `graph` are changed until they obey (`obey_pins`): groups of several devices give up those that
are pinned, and parts are cut, along the topological order, around nodes that are pinned elsewhere;
a part that is cut along this order never closes a cycle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from graphplan.errors import InvalidOption
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part


def apply_pins(problem: Problem, parts: Sequence[Part]) -> tuple[Part, ...] | None:
    """The parts with devices exchanged as the pins ask, None when these parts cannot obey them.

    A pinned node runs on its device alone: its part has one device and no node pinned elsewhere.
    """
    if not problem.pins:
        return tuple(parts)
    moved = list(parts)
    taken: set[int] = set()
    for p, part in enumerate(parts):
        wanted = {problem.pins[node] for node in part.nodes if node in problem.pins}
        if not wanted:
            continue
        device = min(wanted)
        if len(wanted) > 1 or len(part.devices) > 1 or device in taken:
            return None
        taken.add(device)
        moved = _swap_devices(moved, moved[p].devices[0], device)
    return tuple(moved)


def _swap_devices(parts: Sequence[Part], a: int, b: int) -> list[Part]:
    other = {a: b, b: a}
    return [
        msgspec.structs.replace(part, devices=tuple(other.get(d, d) for d in part.devices))
        for part in parts
    ]


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


def refuse_pins(problem: Problem, solver: str) -> InvalidOption:
    """The error of a solver that found no cut with these pins."""
    names = ", ".join(
        f"{problem.nodes[node].name}={device}" for node, device in sorted(problem.pins.items())[:4]
    )
    return InvalidOption(
        f"The planner {solver!r} has no plan with the pins {names}.",
        remedy="Use --planner graph, which plans around pins, or remove some.",
    )
