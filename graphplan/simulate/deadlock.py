"""explain_deadlock: who waits for whom when a program stops before its end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.simulate.compiled import Compiled, Times
from graphplan.simulate.places import name_task
from graphplan.simulate.posting import name_message


class Wait(NamedTuple):
    """A device that waits at a task for something that another device will do only later."""

    device: int
    task: int
    for_what: str
    other: int


def explain_deadlock(compiled: Compiled, times: Times) -> InvalidProgram:
    """The error that names the cycle of waiting devices."""
    waits = {wait.device: wait for wait in _collect_waits(compiled, times)}
    cycle = _find_cycle(waits)
    lines = [
        f"device {wait.device} waits at {name_task(compiled.tasks, wait.task)} for {wait.for_what}"
        for wait in cycle
    ]
    num_left = int(np.sum(times.task_end < 0))
    return InvalidProgram(
        f"Deadlock: {num_left} of {len(times.task_end)} tasks never run. " + "; ".join(lines) + ".",
        remedy="Post the transfers of each device in an order in which the others can answer.",
    )


def _collect_waits(compiled: Compiled, times: Times) -> list[Wait]:
    waits = []
    for device in range(compiled.num_devices):
        task = _find_stuck(compiled, times, device)
        if task is not None:
            waits.append(_explain_wait(compiled, times, device, task))
    return waits


def _find_stuck(compiled: Compiled, times: Times, device: int) -> int | None:
    first, last = compiled.tasks.first[device : device + 2]
    left = np.flatnonzero(times.task_end[first:last] < 0)
    return int(first + left[0]) if len(left) else None


def _explain_wait(compiled: Compiled, times: Times, device: int, task: int) -> Wait:
    tasks, messages, wires = compiled.tasks, compiled.messages, compiled.wires
    if tasks.group[task] >= 0:
        members = np.flatnonzero(tasks.group == tasks.group[task])
        for member in members:
            other = int(tasks.device[member])
            if _find_stuck(compiled, times, other) != member:
                return Wait(device, task, f"device {other} to reach it too", other)
    needed = np.flatnonzero((messages.consumer == task) & (times.message_start < 0))
    message = int(needed[0])
    wire = int(messages.wire[message])
    name = name_message(wires, wire, int(messages.micro_batch[message]))
    src = int(wires.src_device[wire])
    if messages.receive_slot[message] > task + device:
        return Wait(device, task, f"{name}, which it posts only behind that task", device)
    blocking = _find_stuck(compiled, times, src)
    behind = "" if blocking is None else f" only after {name_task(tasks, blocking)}"
    return Wait(device, task, f"{name}, which device {src} posts{behind}", src)


def _find_cycle(waits: dict[int, Wait]) -> list[Wait]:
    """The first cycle along `other`: every waiting device waits for a waiting one."""
    seen: list[int] = []
    device = min(waits)
    while device not in seen:
        seen.append(device)
        device = waits[device].other
    return [waits[each] for each in seen[seen.index(device) :]]
