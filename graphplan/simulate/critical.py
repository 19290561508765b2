"""find_critical_path: the chain of tasks and messages that decides the makespan.

Walked backwards from the last end: whatever ended last of what a task or message waited for comes
before it. Ties go to the device's own previous task, so that a chain leaves a device only when it
must.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from graphplan.play.script import Floats, Ints, Times
from graphplan.simulate.compiled import Compiled, name_message, name_task


class Step(NamedTuple):
    """A task or a message of the path."""

    is_task: bool
    number: int


def find_critical_path(compiled: Compiled, times: Times) -> tuple[str, ...]:
    """Texts of the instructions of one chain without slack, first to last."""
    names = [
        name_task(compiled.tasks, step.number)
        if step.is_task
        else name_message(
            compiled.wires,
            int(compiled.messages.wire[step.number]),
            int(compiled.messages.micro_batch[step.number]),
        )
        for step in walk_critical_path(compiled, times)
    ]
    return tuple(names)


def walk_critical_path(compiled: Compiled, times: Times) -> list[Step]:
    """The steps of the critical path, first to last."""
    if not len(times.task_end):
        return []
    walker = _Walker(compiled, times)
    path: list[Step] = []
    # Of several last ends the last in the lists: a task of no seconds behind another counts too.
    last = len(times.task_end) - 1 - int(np.argmax(times.task_end[::-1]))
    step: Step | None = Step(True, last)
    while step is not None:
        path.append(step)
        step = (
            walker.before_task(step.number) if step.is_task else walker.before_message(step.number)
        )
    return path[::-1]


class _Walker:
    """Looks up what a task or message waited for last."""

    def __init__(self, compiled: Compiled, times: Times) -> None:
        self.compiled, self.times = compiled, times
        messages, script = compiled.messages, compiled.script
        sent = times.message_start + script.message_seconds
        arrival = sent + script.message_latency_s
        start = np.append(times.task_start, np.inf)
        self.decisive: Ints = np.full(len(start), -1, dtype=np.int64)
        """A message that arrived just when its task started; -1 when there is none."""
        just = np.flatnonzero(arrival == start[messages.consumer])
        self.decisive[messages.consumer[just]] = just

    def before_task(self, task: int) -> Step | None:
        """What ended last of all that a task waited for."""
        tasks, end, script = self.compiled.tasks, self.times.task_end, self.compiled.script
        group = int(script.task_group[task])
        if group >= 0:
            bounds = script.group_first[group : group + 2]
            members = script.group_task[bounds[0] : bounds[1]].tolist()
            return self._last_of([m - 1 for m in members if m > tasks.first[tasks.device[m]]])
        has_previous = task > tasks.first[tasks.device[task]]
        if has_previous and end[task - 1] == self.times.task_start[task]:
            return Step(True, task - 1)
        message = int(self.decisive[task])
        return Step(False, message) if message >= 0 else None

    def before_message(self, message: int) -> Step | None:
        """The message before it on the channel, or the task after which it was posted."""
        messages, channel = self.compiled.messages, self.compiled.script.message_channel
        slots = int(messages.send_slot[message]), int(messages.receive_slot[message])
        step = self._last_of([slot for slot in slots if slot < len(self.times.task_end)])
        posted = self.times.task_end[step.number] if step else 0.0
        start = self.times.message_start[message]
        if posted < start:
            return Step(False, self._find_occupant(int(channel[message]), start))
        return step

    def _last_of(self, candidates: list[int]) -> Step | None:
        if not candidates:
            return None
        return Step(True, max(candidates, key=lambda task: (self.times.task_end[task], -task)))

    def _find_occupant(self, channel: int, until_s: float) -> int:
        """The message that kept a channel busy until a moment."""
        numbers, starts = self._queues[channel]
        return int(numbers[np.searchsorted(starts, until_s) - 1])

    @cached_property
    def _queues(self) -> list[tuple[Ints, Floats]]:
        """By channel, the messages that take time and their starts; others keep nobody waiting."""
        script, start = self.compiled.script, self.times.message_start
        order = np.lexsort((start, script.message_channel))
        order = order[script.message_seconds[order] > 0]
        bounds = np.searchsorted(
            script.message_channel[order], np.arange(1, len(self.compiled.channels))
        )
        return [(numbers, start[numbers]) for numbers in np.split(order, bounds)]
