"""run_python: the event loop of the simulator in plain Python.

The only events are the ends of tasks. When a device ends one, it reaches its next task, and posts
the transfers that stand between the two. A message that both ends have posted takes its place on
its channel at once: events come in the order of time, so posting order is first come, first served.
Ties are broken by the number of the device.

When every channel belongs to one pair of devices, the order on it is the order of the lists and
time does not matter: a stack then replaces the heap, with the same result.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from graphplan.simulate.compiled import KINDS, Compiled, Times


def run_python(compiled: Compiled, *, contention: bool = True) -> Times:
    """Run to the end, or until all devices wait; `contention=False` lets messages overlap.

    One loop, written out: calls would cost as much as the work. Large programs are bound by memory,
    so that what many tasks or messages have in common is one tuple for all of them, what a device
    posts is read from front to back, and what is read once or twice is an array of plain numbers.
    """
    tasks, messages = compiled.tasks, compiled.messages
    by_time = contention and compiled.has_shared_channel
    heappush, heappop, heapreplace = heapq.heappush, heapq.heappop, heapq.heapreplace
    push: Callable[[list[Any], Any], None] = heappush if by_time else list.append
    facts_of, link_of = _list_facts(compiled), _list_links(compiled)
    posts_of = _list_posts(compiled)
    group_of = _map_groups(compiled)
    consumer = array("q", messages.consumer.tobytes())
    reached, last = tasks.first[:-1].tolist(), tasks.first[1:].tolist()
    missing = compiled.num_missing.tolist()
    ready = [0.0] * (len(tasks.stage) + 1)  # when all that has come was there; at last the start
    posted, sent = (array("d", [-1.0]) * len(consumer) for _ in range(2))
    free = [0.0] * len(compiled.channels)
    next_end = 0.0
    queue: list[tuple[float, int]] = [(0.0, device) for device in range(compiled.num_devices)]

    while queue:
        now, device = queue[0] if by_time else queue.pop()
        task = reached[device]
        goes_on = False
        if task < last[device]:
            reached[device] = task + 1
            if now > ready[task]:
                ready[task] = now
            missing[task] -= 1
            if not missing[task]:
                goes_on = True
                next_end = ready[task] + facts_of[task][0]
        if by_time:
            if goes_on:
                heapreplace(queue, (next_end, device))
            else:
                heappop(queue)
        if not goes_on and task in group_of:
            members = group_of[task]
            if all(missing[member] == 1 for member in members):
                start = max(ready[member] for member in members)
                for member in members:
                    missing[member] = 0
                    ready[member] = start
                    seconds, other = facts_of[member]
                    push(queue, (start + seconds, other))
        for message in posts_of[device]:
            if message < 0:
                break  # the next task comes here
            start = posted[message]
            if start < 0.0:
                posted[message] = now
                continue
            if start < now:
                start = now
            channel, seconds, latency = link_of[message]
            if contention:
                if free[channel] > start:
                    start = free[channel]
                end = free[channel] = start + seconds
            else:
                end = start + seconds
            sent[message] = start
            end += latency
            reader = consumer[message]
            if end > ready[reader]:
                ready[reader] = end
            missing[reader] -= 1
            if not missing[reader]:
                seconds, other = facts_of[reader]
                if by_time:
                    heappush(queue, (ready[reader] + seconds, other))
                else:
                    queue.append((ready[reader] + seconds, other))
        if goes_on and not by_time:
            queue.append((next_end, device))  # on top: a device that stays in the cache runs on
    start_s = np.fromiter(ready, dtype=np.float64, count=len(tasks.stage))
    has_run = np.fromiter(missing, dtype=np.int64, count=len(tasks.stage)) == 0
    return Times(
        start_s,
        np.where(has_run, start_s + tasks.seconds, -1.0),
        np.frombuffer(sent, dtype=np.float64),
    )


def _list_facts(compiled: Compiled) -> list[tuple[float, int]]:
    """Seconds and device of every task; tasks of a kind on a device share one tuple."""
    tasks = compiled.tasks
    key = tasks.seat * len(KINDS) + tasks.kind
    seconds, device = (np.zeros(int(key.max(initial=-1)) + 1) for _ in range(2))
    seconds[key], device[key] = tasks.seconds, tasks.device
    known = list(zip(seconds.tolist(), device.astype(np.int64).tolist(), strict=True))
    return [known[each] for each in key.tolist()]


def _list_links(compiled: Compiled) -> list[tuple[int, float, float]]:
    """Channel, seconds and latency of every message; those of a wire share one tuple."""
    wires = compiled.wires
    columns = wires.channel.tolist(), wires.seconds.tolist(), wires.latency_s.tolist()
    known = list(zip(*columns, strict=True))
    return [known[wire] for wire in compiled.messages.wire.tolist()]


def _list_posts(compiled: Compiled) -> list[Iterator[int]]:
    """For each device the messages that it posts, with -1 where a task stands, to be read once."""
    first, num_slots = compiled.post_first, len(compiled.post_first) - 1
    slot = np.repeat(np.arange(num_slots), np.diff(first))
    stream = np.full(len(slot) + num_slots, -1, dtype=np.int64)
    stream[np.arange(len(slot)) + slot] = compiled.post_message
    device_slot = compiled.tasks.first + np.arange(len(compiled.tasks.first))
    bounds = (first[np.minimum(device_slot, num_slots)] + device_slot).tolist()
    return [iter(array("q", stream[a:b].tobytes())) for a, b in pairwise(bounds)]


def _map_groups(compiled: Compiled) -> dict[int, list[int]]:
    """All-reduces: task -> the tasks that must meet."""
    parts = np.split(compiled.group_task, compiled.group_first[1:-1])
    return {task: members for members in map(np.ndarray.tolist, parts) for task in members}
