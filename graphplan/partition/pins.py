"""Pins: finished parts exchange their devices, so that pinned nodes sit where they are wanted."""

from __future__ import annotations

from collections.abc import Sequence

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


def refuse_pins(problem: Problem, solver: str) -> InvalidOption:
    """The error of a solver that found no cut with these pins."""
    names = ", ".join(
        f"{problem.nodes[node].name}={device}" for node, device in sorted(problem.pins.items())[:4]
    )
    return InvalidOption(
        f"The planner {solver!r} has no plan with the pins {names}.",
        remedy="Use --planner graph, which plans around pins, or remove some.",
    )
