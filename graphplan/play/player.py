"""play_script: the one loop that runs tasks and messages in time.

Everything happens at events, in the order of time, at equal times by the number of the machine. A
machine has an event when its task ends, and when the last message that a task of it waits for
arrives. At an event a free machine posts what lies behind the task that it has just ended, and
begins its next task if that may run now:

    two stages, one micro-batch, F and B of 1 s, messages of 0.5 s (x: ends, ~: arrives)

    machine 0   0F0 x                                ~ 0B0 x
    channel         |0>1F0|                  |1>0B0|
    machine 1             ~ 1F0     x 1B0   x

What the next task is, is all in which the two uses differ. A machine that *follows* takes the next
of its line. A machine that *chooses* (a list schedule) takes the most urgent task that is ready:
micro-batches of a stage in order within each kind; a forward only if the in-flight limit of its
stage and the memory of the device allow it, with room left for one micro-batch of every later stage
of the device that holds none, since its own backward waits for theirs. It may idle for a more
urgent task that is known to arrive within `patience` times the seconds of the one at hand.

A queued message takes its place on its channel when its second end is posted; since events come in
the order of time, that is first come, first served. Nothing is decided ahead of its time: a task
begins at an event, and an event that comes before the end of a machine's task is ignored. A law by
which a transfer slows the tasks beside it would move that end and add an event: `end_task` is the
place for it.

Helpers get the few arrays that they need: numba copies what is passed. The loop is plain Python
that numba compiles; both ways give the same numbers to the last bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from graphplan.jit import compile_loop
from graphplan.play.script import Floats, Ints, Script, Times

INTERFERENCE = 1.0
"""By how much transfers beside it slow a task: not at all, so far."""
NUM_COLUMNS = 8
FIRST, COUNT, NUM_ROWS, LIMIT, SAVED, KEPT, WORKSPACE, HAS_UPDATE = range(NUM_COLUMNS)
"""Columns of `Freedom.stages`."""
FORWARDS, GRADIENTS, WEIGHTS, FLYING = range(4)
"""Columns of what the stages have begun: tasks by row, and micro-batches in flight."""


class Freedom(NamedTuple):
    """What a machine may choose among, and what it has to obey; its tasks are those of a Shop."""

    stage_of: Ints
    """By task."""
    priority: Floats
    """By task; the larger goes first."""
    stages: Ints
    """By stage, one row after the other: the number of its first task, where rows of `COUNT` tasks
    follow one another; the rows to choose among (1: forwards, 2: whole, 3: split backwards); most
    micro-batches between F and the end of B or I; bytes from F, from I, and of a running task;
    whether an update follows its last task."""
    hosted_first: Ints
    """Machine -> its first place in `hosted`."""
    hosted: Ints
    """Stages of the machines."""
    room: Ints
    """By machine: bytes for activations and workspace."""
    patience: float


class State(NamedTuple):
    """What the loop changes while it plays."""

    place: Ints
    """By machine: the next place of its line."""
    running: Ints
    """By machine: the slot that it is to reach, -1 when it idles."""
    free_s: Floats
    """By machine: when its task ends."""
    channel_free_s: Floats
    missing: Ints
    ready_s: Floats
    """By task, one more for `nobody`: when the last message so far arrives."""
    group_missing: Ints
    posted: Ints
    """By message: whether one of its ends is posted."""
    heap_s: Floats
    heap_machine: Ints
    begun: Ints
    """By stage, four columns."""
    room: Ints
    due: Ints
    """By machine: an update that comes next, -1 for none."""


_NO_INTS, _NO_FLOATS = np.zeros(0, dtype=np.int64), np.zeros(0)
_NO_FREEDOM = Freedom(_NO_INTS, _NO_FLOATS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, 0.0)


def play_script(
    script: Script, freedom: Freedom | None = None, *, is_compiled: bool = True
) -> Times:
    """Play until nothing moves; tasks that never ran have negative ends."""
    chooses, free = freedom is not None, freedom or _NO_FREEDOM
    state = _set_up(script, free)
    num_tasks, num_messages = len(script.task_machine), len(script.message_reader)
    times = Times(
        np.zeros(num_tasks),
        np.full(num_tasks, -1.0),
        np.full(num_messages, -1.0),
        np.full(num_tasks, -1, dtype=np.int64),
    )
    if is_compiled:
        num_begun = _play(script, free, state, times, chooses)
    else:  # Lists are faster than arrays there.
        lists = _list_up(times)
        num_begun = _play.plain(_list_up(script), _list_up(free), _list_up(state), lists, chooses)
        times = Times._make(map(np.asarray, (*lists[:3], np.array(lists[3], dtype=np.int64))))
    return times._replace(sequence=times.sequence[:num_begun])


def _set_up(script: Script, freedom: Freedom) -> State:
    """The state before anything has happened: every machine has an event at 0."""
    num_machines, num_tasks = len(script.line_first) - 1, len(script.task_machine)
    num_events = num_machines + 2 * num_tasks + 1
    heap_machine = np.zeros(num_events, dtype=np.int64)
    heap_machine[:num_machines] = np.arange(num_machines)
    return State(
        place=script.line_first[:-1].copy(),
        running=np.arange(num_tasks, num_tasks + num_machines),
        free_s=np.zeros(num_machines),
        channel_free_s=np.zeros(script.num_channels),
        missing=np.append(script.task_missing, len(script.message_reader) + 1),
        ready_s=np.zeros(num_tasks + 1),
        group_missing=np.diff(script.group_first),
        posted=np.zeros(len(script.message_reader), dtype=np.int64),
        heap_s=np.zeros(num_events),
        heap_machine=heap_machine,
        begun=np.zeros(len(freedom.stages) // NUM_COLUMNS * 4, dtype=np.int64),
        room=freedom.room.copy(),
        due=np.full(num_machines, -1, dtype=np.int64),
    )


def _list_up(arrays: Any) -> Any:
    """The same with lists in place of arrays."""
    return type(arrays)._make(
        each.tolist() if isinstance(each, np.ndarray) else each for each in arrays
    )


@compile_loop
def _play(script: Script, freedom: Freedom, state: State, times: Times, chooses: bool) -> int:
    """The loop; the number of tasks that have begun."""
    (line_first, line, machine_of, seconds, _, group_of, post_first, post_message) = script[:8]
    (reader, channel_of, occupancy, latency, group_first, group_task, _, is_queued) = script[8:]
    stage_of, priority, stages, hosted_first, hosted, _, patience = freedom
    place, running, free_s, channel_free_s, missing, ready_s, group_missing = state[:7]
    posted, heap_s, heap_machine, begun, room, due = state[7:]
    task_start, task_end, message_start, sequence = times
    num_machines, num_tasks = len(line_first) - 1, len(machine_of)
    queued, num_begun = num_machines, 0
    while queued > 0:
        now, machine = heap_s[0], heap_machine[0]
        queued -= 1
        _sift_down(heap_s, heap_machine, queued)
        if free_s[machine] > now:
            continue  # It is busy; the end of its task is another event.

        # 1. What has just ended, and what is posted behind it.
        slot = running[machine]
        if slot >= 0:
            running[machine] = -1
            if chooses and slot < num_tasks:
                _release(stages, begun, room, machine, stage_of[slot], slot)
            if is_queued:
                for at in range(post_first[slot], post_first[slot + 1]):
                    message = post_message[at]
                    if posted[message] == 0:
                        posted[message] = 1
                        continue
                    # The second end: it takes its place on its channel.
                    channel = channel_of[message]
                    start = max(now, channel_free_s[channel])
                    channel_free_s[channel] = start + occupancy[message]
                    message_start[message] = start
                    task, arrival = reader[message], start + occupancy[message] + latency[message]
                    if _tell(missing, ready_s, task, arrival):
                        there = machine_of[task]
                        if running[there] < 0 or ready_s[task] > free_s[there]:
                            queued = _push(heap_s, heap_machine, queued, ready_s[task], there)

        # 2. What comes next, if it may begin now.
        if chooses:
            task = due[machine]
            due[machine] = -1
            if task < 0:
                task = _choose(
                    stages, begun, hosted[hosted_first[machine] : hosted_first[machine + 1]],
                    room[machine], priority, missing, ready_s, seconds, patience, now,
                )  # fmt: skip
        else:
            task = line[place[machine]] if place[machine] < line_first[machine + 1] else -1
            if task >= 0 and (missing[task] > 0 or ready_s[task] > now):
                task = -1
        if task < 0:
            continue
        place[machine] += 1
        first, num, group = 0, 1, group_of[task]
        if group >= 0:  # It begins on all replicas when the last of them is here.
            running[machine], free_s[machine] = task, math.inf
            group_missing[group] -= 1
            first = group_first[group]
            num = group_first[group + 1] - first if group_missing[group] == 0 else 0

        # 3. It begins, on one machine or on all of a group.
        for at in range(first, first + num):
            task = task if group < 0 else group_task[at]
            there = machine_of[task]
            end = end_task(now, seconds[task])
            task_start[task], task_end[task], sequence[num_begun] = now, end, task
            num_begun += 1
            running[there], free_s[there] = task, end
            queued = _push(heap_s, heap_machine, queued, end, there)
            if chooses:
                due[there] = _account(stages, begun, room, there, stage_of[task], task)
            if not is_queued:
                for post in range(post_first[task], post_first[task + 1]):
                    fed = reader[post_message[post]]
                    if _tell(missing, ready_s, fed, end + latency[post_message[post]]):
                        other = machine_of[fed]
                        if running[other] < 0 or ready_s[fed] > free_s[other]:
                            queued = _push(heap_s, heap_machine, queued, ready_s[fed], other)
    return num_begun


def end_task(start_s: float, seconds: float) -> float:
    """When a task ends."""
    return start_s + seconds * INTERFERENCE


def _tell(missing: Ints, ready_s: Floats, task: int, arrival: float) -> bool:
    """A task learns when a message arrives; whether it was the last one."""
    missing[task] -= 1
    if ready_s[task] < arrival:
        ready_s[task] = arrival
    return bool(missing[task] == 0)


def _choose(
    stages: Ints,
    begun: Ints,
    hosted: Ints,
    space: int,
    priority: Floats,
    missing: Ints,
    ready_s: Floats,
    seconds: Floats,
    patience: float,
    now: float,
) -> int:
    """The most urgent ready task, -1 if there is none or a coming one is worth waiting for.

    The first look finds the best that is ready, the second one what is better and on its way.
    """
    best, urgency, until = -1, 0.0, now
    for look in range(2):
        reserved = 0
        for at in range(len(hosted) - 1, -1, -1):
            row_of, own = NUM_COLUMNS * hosted[at], 4 * hosted[at]
            count, saved = stages[row_of + COUNT], stages[row_of + SAVED]
            room, flying = space - stages[row_of + WORKSPACE], begun[own + FLYING]
            for row in range(stages[row_of + NUM_ROWS] if room >= 0 else 0):
                done = begun[own + row]
                task = stages[row_of + FIRST] + row * count + done
                if done == count or missing[task] > 0:
                    continue
                if row == FORWARDS and (
                    saved + reserved > room or flying >= stages[row_of + LIMIT]
                ):
                    continue
                if look == 0 and ready_s[task] <= now:
                    if best < 0 or priority[task] > urgency:
                        best, urgency = task, priority[task]
                elif look == 1 and now < ready_s[task] <= until and priority[task] > urgency:
                    return -1
            if flying == 0 and begun[own] < count:
                reserved += saved
        if best < 0 or patience == 0.0:
            break
        until = now + patience * seconds[best]
    return best


def _account(stages: Ints, begun: Ints, room: Ints, machine: int, stage: int, task: int) -> int:
    """Count a task that begins and the memory that it takes; the update that comes next, or -1."""
    row_of = NUM_COLUMNS * stage
    count, num_rows = stages[row_of + COUNT], stages[row_of + NUM_ROWS]
    row = (task - stages[row_of + FIRST]) // count
    if row > WEIGHTS:
        return -1
    begun[4 * stage + row] += 1
    if row == FORWARDS and num_rows > 1:
        begun[4 * stage + FLYING] += 1
        room[machine] -= stages[row_of + SAVED]
    is_last = row == num_rows - 1 and begun[4 * stage + row] == count
    return stages[row_of + FIRST] + 4 * count - 1 if is_last and stages[row_of + HAS_UPDATE] else -1


def _release(stages: Ints, begun: Ints, room: Ints, machine: int, stage: int, task: int) -> None:
    """Free what a task that has ended no longer needs."""
    row_of = NUM_COLUMNS * stage
    row = (task - stages[row_of + FIRST]) // stages[row_of + COUNT]
    if row == GRADIENTS:
        begun[4 * stage + FLYING] -= 1
        room[machine] += stages[row_of + SAVED] - stages[row_of + KEPT]
    elif row == WEIGHTS:
        room[machine] += stages[row_of + KEPT]


def _push(heap_s: Floats, heap_machine: Ints, queued: int, time: float, machine: int) -> int:
    """Add an event to the heap of (time, machine); the new number of events."""
    place = queued
    while place > 0:
        parent = (place - 1) >> 1
        above, other = heap_s[parent], heap_machine[parent]
        if above < time or (above == time and other <= machine):
            break
        heap_s[place], heap_machine[place] = above, other
        place = parent
    heap_s[place], heap_machine[place] = time, machine
    return queued + 1


def _sift_down(heap_s: Floats, heap_machine: Ints, queued: int) -> None:
    """Take the first event off the heap: the last of its `queued` + 1 finds its place."""
    time, machine = heap_s[queued], heap_machine[queued]
    place = 0
    child = 1
    while child < queued:
        right = child + 1
        if right < queued and (
            heap_s[right] < heap_s[child]
            or (heap_s[right] == heap_s[child] and heap_machine[right] < heap_machine[child])
        ):
            child = right
        below, other = heap_s[child], heap_machine[child]
        if time < below or (time == below and machine <= other):
            break
        heap_s[place], heap_machine[place] = below, other
        place = child
        child = 2 * place + 1
    heap_s[place], heap_machine[place] = time, machine
