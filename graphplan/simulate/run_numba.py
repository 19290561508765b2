"""run_numba: the event loop of `run.py`, compiled; the same steps on the same numbers.

Floating-point operations come in the same order as in plain Python, without fused or reordered
arithmetic, so that both engines agree to the last bit.
"""

from __future__ import annotations

import numpy as np

from graphplan.jit import compile_loop
from graphplan.simulate.compiled import Compiled, Floats, Ints, Times


def run_numba(compiled: Compiled, *, contention: bool = True) -> Times:
    """Run to the end, or until all devices wait; `contention=False` lets messages overlap."""
    tasks, messages = compiled.tasks, compiled.messages
    task_start = np.zeros(len(tasks.stage) + 1)  # one more for `no task`
    task_end = np.full(len(tasks.stage), -1.0)
    message_start = np.full(len(messages.wire), -1.0)
    _run(
        (tasks.first, tasks.device, tasks.group, tasks.seconds),
        (messages.channel, messages.consumer, messages.seconds, messages.latency_s),
        (compiled.post_first, compiled.post_message),
        (compiled.group_first, compiled.group_task),
        compiled.num_missing.copy(),
        np.zeros(len(compiled.channels)),
        (task_start, task_end, message_start),
        contention,
        contention and compiled.has_shared_channel,
    )
    return Times(task_start[:-1], task_end, message_start)


@compile_loop
def _run(
    tasks: tuple[Ints, Ints, Ints, Floats],
    messages: tuple[Ints, Ints, Floats, Floats],
    posts: tuple[Ints, Ints],
    groups: tuple[Ints, Ints],
    missing: Ints,
    free: Floats,
    times: tuple[Floats, Floats, Floats],
    contention: bool,
    by_time: bool,
) -> None:
    """The loop of `run_python`; the queue is a heap of (time, device), or a stack."""
    first, device_of, group_of, seconds = tasks
    channel_of, consumer, occupancy, latency = messages
    post_first, post_message = posts
    group_first, group_task = groups
    ready, task_end, message_start = times
    num_devices = len(first) - 1
    queue_time = np.zeros(num_devices + 1)
    queue_device = np.arange(num_devices + 1)
    queued = num_devices
    reached = first[:-1].copy()
    posted = np.full(len(consumer), -1.0)
    group_missing = np.diff(group_first)

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
            start = max(start, now)
            channel = channel_of[message]
            if contention:
                start = max(start, free[channel])
            end = start + occupancy[message]
            free[channel] = end
            message_start[message] = start
            reader = consumer[message]
            ready[reader] = max(ready[reader], end + latency[message])
            missing[reader] -= 1
            if missing[reader] == 0:
                end = task_end[reader] = ready[reader] + seconds[reader]
                queued = _push(queue_time, queue_device, queued, end, device_of[reader], by_time)


@compile_loop
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


@compile_loop
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
