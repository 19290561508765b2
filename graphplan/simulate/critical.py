"""find_critical_path: the chain of tasks and messages that decides the makespan.

Walked backwards from the last end: whatever ended last of what a task or message waited for comes
before it. Ties go to the device's own previous task, so that a chain leaves a device only when it
must.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from graphplan.play.script import Ints, Times
from graphplan.simulate.compiled import Compiled, name_message, name_task

What = Literal["task", "message", "bucket"]


class Step(NamedTuple):
    """A task, a message or a bucket of the path; a bucket has the name of its R."""

    what: What
    number: int


def find_critical_path(compiled: Compiled, times: Times) -> tuple[str, ...]:
    """Texts of the instructions of one chain without slack, first to last."""
    return tuple(_name_step(compiled, step) for step in walk_critical_path(compiled, times))


def _name_step(compiled: Compiled, step: Step) -> str:
    if step.what == "message":
        messages = compiled.messages
        ends = int(messages.wire[step.number]), int(messages.micro_batch[step.number])
        return name_message(compiled.wires, *ends)
    is_bucket = step.what == "bucket"
    return name_task(compiled.tasks, compiled.reduce_of(step.number) if is_bucket else step.number)


def walk_critical_path(compiled: Compiled, times: Times) -> list[Step]:
    """The steps of the critical path, first to last."""
    if not len(times.task_end):
        return []
    walker = _Walker(compiled, times)
    path: list[Step] = []
    # Of several last ends the last in the lists: a task of no seconds behind another counts too.
    last = len(times.task_end) - 1 - int(np.argmax(times.task_end[::-1]))
    step: Step | None = Step("task", last)
    before = {
        "task": walker.before_task,
        "message": walker.before_message,
        "bucket": walker.before_bucket,
    }
    while step is not None:
        path.append(step)
        step = before[step.what](step.number)
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
            return Step("task", task - 1)
        message = int(self.decisive[task])
        return Step("message", message) if message >= 0 else None

    def before_message(self, message: int) -> Step | None:
        """The message before it on the channel, or the task after which it was posted."""
        messages, channel = self.compiled.messages, self.compiled.script.message_channel
        slots = int(messages.send_slot[message]), int(messages.receive_slot[message])
        step = self._last_of([slot for slot in slots if slot < len(self.times.task_end)])
        posted = self.times.task_end[step.number] if step else 0.0
        start = self.times.message_start[message]
        if posted < start:
            return self._find_occupant(int(channel[message]), start)
        return step

    def before_bucket(self, bucket: int) -> Step | None:
        """What kept its lanes, or the task in the course of which it became complete."""
        script, times = self.compiled.script, self.times
        group = int(self.compiled.group_by_bucket[bucket])
        start = times.bucket_start[bucket]
        while bucket > script.bucket_first[group] and times.bucket_end[bucket - 1] == start:
            bucket -= 1
            start = times.bucket_start[bucket]
        lanes = script.lane_channel[slice(*script.lane_first[group : group + 2])]
        for lane in lanes.tolist():
            occupant = self._find_occupant(lane, start) if start > 0 else None
            if occupant is not None:
                return occupant
        fillers = np.flatnonzero(script.task_fills == group)
        return Step("task", int(fillers[np.argmax(times.task_start[fillers])]))

    def _last_of(self, candidates: list[int]) -> Step | None:
        if not candidates:
            return None
        return Step("task", max(candidates, key=lambda task: (self.times.task_end[task], -task)))

    def _find_occupant(self, channel: int, until_s: float) -> Step | None:
        """What kept a channel busy until a moment."""
        steps, ends = self._occupants[channel]
        at = int(np.searchsorted(ends, until_s))
        return steps[at] if at < len(ends) and ends[at] == until_s else None

    @cached_property
    def _occupants(self) -> list[tuple[list[Step], list[float]]]:
        """By channel, what takes time there, by its end; the rest keeps nobody waiting."""
        script, times = self.compiled.script, self.times
        found: list[list[tuple[float, Step]]] = [[] for _ in self.compiled.channels]
        for message in np.flatnonzero(script.message_seconds > 0).tolist():
            end = float(times.message_start[message] + script.message_seconds[message])
            found[script.message_channel[message]].append((end, Step("message", message)))
        for bucket, lane in zip(
            *(each.tolist() for each in self.compiled.list_lanes()), strict=True
        ):
            if times.bucket_end[bucket] > times.bucket_start[bucket]:
                found[lane].append((float(times.bucket_end[bucket]), Step("bucket", bucket)))
        return [([s for _, s in each], [t for t, _ in each]) for each in map(sorted, found)]
