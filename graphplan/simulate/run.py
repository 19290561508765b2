"""run_compiled: the event loop of the simulator.

The only events are the ends of tasks. When a device ends one, it reaches its next task, and posts
the transfers that stand between the two. A message that both ends have posted takes its place on
its channel at once: events come in the order of time, so posting order is first come, first served.
Ties are broken by the number of the device.

When every channel belongs to one pair of devices, the order on it is the order of the lists and
time does not matter: a stack then replaces the heap, with the same result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphplan.jit import compile_loop
from graphplan.simulate.compiled import Compiled, Floats, Ints, Times
from graphplan.simulate.deadlock import explain_deadlock

WORTH_COMPILING = 300_000
"""Tasks and messages from which on loading numba takes less time than it saves."""


def run_compiled(compiled: Compiled) -> Times:
    """The times of a compiled program; raises InvalidProgram when it deadlocks."""
    tasks, messages = compiled.tasks, compiled.messages
    num_tasks, num_messages = len(tasks.stage), len(messages.wire)
    arrays: tuple[Any, ...] = (
        (tasks.first, tasks.device, tasks.group, tasks.seconds),
        (messages.channel, messages.consumer, messages.seconds, messages.latency_s),
        (compiled.post_first, compiled.post_message),
        (compiled.group_first, compiled.group_task),
        (np.zeros(compiled.num_devices + 1), np.arange(compiled.num_devices + 1)),
        (
            tasks.first[:-1].copy(),
            compiled.num_missing.copy(),
            np.diff(compiled.group_first),
            np.full(num_messages, -1.0),
            np.zeros(len(compiled.channels)),
        ),
        # One more start for `no task`.
        (np.zeros(num_tasks + 1), np.full(num_tasks, -1.0), np.full(num_messages, -1.0)),
    )
    if num_tasks + num_messages >= WORTH_COMPILING:
        _run(*arrays, compiled.has_shared_channel)
    else:
        arrays = tuple(tuple(each.tolist() for each in group) for group in arrays)
        _run.plain(*arrays, compiled.has_shared_channel)
    start, end, sent = (np.asarray(each, dtype=np.float64) for each in arrays[-1])
    times = Times(start[:-1], end, sent)
    if times.task_end.min(initial=0.0) < 0:
        raise explain_deadlock(compiled, times)
    return times


@compile_loop
def _run(
    tasks: tuple[Ints, Ints, Ints, Floats],
    messages: tuple[Ints, Ints, Floats, Floats],
    posts: tuple[Ints, Ints],
    groups: tuple[Ints, Ints],
    queue: tuple[Floats, Ints],
    state: tuple[Ints, Ints, Ints, Floats, Floats],
    times: tuple[Floats, Floats, Floats],
    by_time: bool,
) -> None:
    """The event loop; the queue is a heap of (time, device), or a stack."""
    first, device_of, group_of, seconds = tasks
    channel_of, consumer, occupancy, latency = messages
    post_first, post_message = posts
    group_first, group_task = groups
    ready, task_end, message_start = times
    queue_time, queue_device = queue
    reached, missing, group_missing, posted, free = state
    queued = len(first) - 1

    while queued > 0:
        top = 0 if by_time else queued - 1
        now, device = queue_time[top], queue_device[top]
        task = reached[device]
        slot = task + device
        goes_on = False
        if task < first[device + 1]:
            reached[device] = task + 1
            ready[task] = max(ready[task], now)
            missing[task] -= 1
            goes_on = missing[task] == 0
        if goes_on:
            end = task_end[task] = ready[task] + seconds[task]
            queue_time[top] = end
            if by_time:
                _sift_down(queue_time, queue_device, queued)
        else:
            queued -= 1
            if by_time:
                queue_time[0], queue_device[0] = queue_time[queued], queue_device[queued]
                _sift_down(queue_time, queue_device, queued)
            group = group_of[task] if task < first[device + 1] else -1
            if group >= 0:
                group_missing[group] -= 1
                lead = group_task[group_first[group]]
                ready[lead] = max(ready[lead], now)
                if group_missing[group] == 0:
                    for position in range(group_first[group], group_first[group + 1]):
                        member = group_task[position]
                        ready[member] = ready[lead]
                        end = task_end[member] = ready[lead] + seconds[member]
                        queued = _push(
                            queue_time, queue_device, queued, end, device_of[member], by_time
                        )
        for position in range(post_first[slot], post_first[slot + 1]):
            message = post_message[position]
            start = posted[message]
            if start < 0.0:
                posted[message] = now
                continue
            channel = channel_of[message]
            start = max(start, now, free[channel])
            end = start + occupancy[message]
            free[channel] = end
            message_start[message] = start
            reader = consumer[message]
            ready[reader] = max(ready[reader], end + latency[message])
            missing[reader] -= 1
            if missing[reader] == 0:
                end = task_end[reader] = ready[reader] + seconds[reader]
                queued = _push(queue_time, queue_device, queued, end, device_of[reader], by_time)


def _push(
    queue_time: Floats, queue_device: Ints, queued: int, time: float, device: int, by_time: bool
) -> int:
    """Add an entry, at its place in the heap or at the end; the new number of entries."""
    place = queued
    while by_time and place > 0:
        parent = (place - 1) >> 1
        above, other = queue_time[parent], queue_device[parent]
        if above < time or (above == time and other < device):
            break
        queue_time[place], queue_device[place] = above, other
        place = parent
    queue_time[place], queue_device[place] = time, device
    return queued + 1


def _sift_down(queue_time: Floats, queue_device: Ints, queued: int) -> None:
    """Move the first entry of a heap of `queued` down to its place."""
    time, device = queue_time[0], queue_device[0]
    place = 0
    child = 1
    while child < queued:
        right = child + 1
        if right < queued and (
            queue_time[right] < queue_time[child]
            or (
                queue_time[right] == queue_time[child] and queue_device[right] < queue_device[child]
            )
        ):
            child = right
        below, other = queue_time[child], queue_device[child]
        if time < below or (time == below and device < other):
            break
        queue_time[place], queue_device[place] = below, other
        place = child
        child = 2 * place + 1
    queue_time[place], queue_device[place] = time, device
