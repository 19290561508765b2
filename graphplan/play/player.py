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
begins at an event, and an event that comes before the end of a machine's task is ignored.

Buckets. In the course of a task that fills buckets, its machine has an event when each of them is
complete. When a bucket is complete on all machines of its group, the group has an event, after
those of all machines at that time, at which the bucket takes its place on all lanes:

    machine 0   ....0B3......|..........|..x         R waits for the last bucket
    lanes                    |--bucket 0--|--bucket 1--|
    machine 1   ....0B3......|..........|..x           ~ 0R3 x

From its start s to its end e the tasks beside it take 1 + `slows` times as long, and it takes
1 + `slowed` times as long while one of them runs (`end_bucket`): their ends, and the moments of
later buckets, move (`move_moment`). What has moved gets another event. That all is known at s is
because these machines do nothing else before e: behind such a task stands the R that waits for it.

Helpers get the few arrays that they need: numba copies what is passed. The loop is plain Python
that numba compiles; both ways give the same numbers to the last bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from graphplan.jit import compile_loop
from graphplan.play.choice import NUM_COLUMNS, Freedom, account_task, choose_task, release_task
from graphplan.play.heap import drop_event, push_event
from graphplan.play.script import Floats, Ints, Script, Times


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
    filling: Ints
    """By machine: the task whose buckets are to be complete, -1 for none."""
    moment_first: Ints
    """Task -> the moments of its buckets; one more entry than tasks."""
    moment_s: Floats
    """When each bucket of each task that fills some is complete there."""
    num_complete: Ints
    """By machine: buckets of the task that are."""
    bucket_missing: Ints
    """By bucket: machines on which it is not complete."""
    group_begun: Ints
    """By group: buckets that have taken their place."""


_NO_INTS, _NO_FLOATS = np.zeros(0, dtype=np.int64), np.zeros(0)
_NO_FREEDOM = Freedom(_NO_INTS, _NO_FLOATS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, 0.0)


def play_script(
    script: Script, freedom: Freedom | None = None, *, is_compiled: bool = True
) -> Times:
    """Play until nothing moves; tasks that never ran have negative ends."""
    chooses, free = freedom is not None, freedom or _NO_FREEDOM
    state = _set_up(script, free)
    num_tasks, num_messages = len(script.task_machine), len(script.message_reader)
    num_buckets = len(script.bucket_seconds)
    times = Times(
        np.zeros(num_tasks),
        np.full(num_tasks, -1.0),
        np.full(num_messages, -1.0),
        np.full(num_buckets, -1.0),
        np.full(num_buckets, -1.0),
        np.full(num_tasks, -1, dtype=np.int64),
    )
    if is_compiled:
        num_begun = _play(script, free, state, times, chooses)
    else:  # Lists are faster than arrays there.
        lists = _list_up(times)
        num_begun = _play.plain(_list_up(script), _list_up(free), _list_up(state), lists, chooses)
        times = Times._make(map(np.asarray, (*lists[:-1], np.array(lists[-1], dtype=np.int64))))
    return times._replace(sequence=times.sequence[:num_begun])


def _set_up(script: Script, freedom: Freedom) -> State:
    """The state before anything has happened: every machine has an event at 0."""
    num_machines, num_tasks = len(script.line_first) - 1, len(script.task_machine)
    fills = script.task_fills
    counts = np.where(fills >= 0, np.append(np.diff(script.bucket_first), 0)[fills], 0)
    num_moments = int(counts.sum())
    num_events = num_machines + 2 * num_tasks + 1 + 4 * num_moments + len(script.bucket_seconds)
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
        filling=np.full(num_machines, -1, dtype=np.int64),
        moment_first=np.append(0, np.cumsum(counts)),
        moment_s=np.zeros(num_moments),
        num_complete=np.zeros(num_machines, dtype=np.int64),
        bucket_missing=np.repeat(np.diff(script.group_first), np.diff(script.bucket_first)),
        group_begun=np.zeros(len(script.group_first) - 1, dtype=np.int64),
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
    (reader, channel_of, occupancy, latency, group_first, group_task, _, is_queued) = script[8:16]
    fills, bucket_first, bucket_ready_s = script[16:19]
    stage_of, priority, stages, hosted_first, hosted, _, patience = freedom
    place, running, free_s, channel_free_s, missing, ready_s, group_missing = state[:7]
    posted, heap_s, heap_machine, begun, room, due = state[7:13]
    filling, moment_first, moment_s, num_complete, bucket_missing = state[13:18]
    task_start, task_end, message_start, _, _, sequence = times
    num_machines, num_tasks = len(line_first) - 1, len(machine_of)
    queued, num_begun = num_machines, 0
    while queued > 0:
        now, machine = heap_s[0], heap_machine[0]
        queued -= 1
        drop_event(heap_s, heap_machine, queued)
        if machine >= num_machines:
            queued = _begin_bucket(script, state, times, queued, machine - num_machines, now)
            continue

        # 0. Buckets that are complete.
        task = filling[machine]
        if task >= 0:
            group, first = fills[task], moment_first[task]
            num = moment_first[task + 1] - first
            has_ended = free_s[machine] <= now
            while num_complete[machine] < num and (
                has_ended or moment_s[first + num_complete[machine]] <= now
            ):
                bucket = bucket_first[group] + num_complete[machine]
                num_complete[machine] += 1
                bucket_missing[bucket] -= 1
                if bucket_missing[bucket] == 0:
                    queued = push_event(heap_s, heap_machine, queued, now, num_machines + group)
                if num_complete[machine] < num and not has_ended:
                    moment = moment_s[first + num_complete[machine]]
                    queued = push_event(heap_s, heap_machine, queued, max(now, moment), machine)
            if num_complete[machine] == num:
                filling[machine] = -1
        if free_s[machine] > now:
            continue  # It is busy; the end of its task is another event.

        # 1. What has just ended, and what is posted behind it.
        slot = running[machine]
        if slot >= 0:
            running[machine] = -1
            if chooses and slot < num_tasks:
                release_task(stages, begun, room, machine, stage_of[slot], slot)
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
                            queued = push_event(heap_s, heap_machine, queued, ready_s[task], there)

        # 2. What comes next, if it may begin now.
        if chooses:
            task = due[machine]
            due[machine] = -1
            if task < 0:
                task = choose_task(
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
            task_start[task] = free_s[machine]
            running[machine], free_s[machine] = task, math.inf
            group_missing[group] -= 1
            first = group_first[group]
            num = group_first[group + 1] - first if group_missing[group] == 0 else 0

        # 3. It begins, on one machine or on all of a group.
        for at in range(first, first + num):
            task = task if group < 0 else group_task[at]
            there = machine_of[task]
            end = now + seconds[task]
            task_end[task], sequence[num_begun] = end, task
            if group < 0 or bucket_first[group] == bucket_first[group + 1]:
                task_start[task] = now  # else it has waited since it was here
            num_begun += 1
            running[there], free_s[there] = task, end
            queued = push_event(heap_s, heap_machine, queued, end, there)
            if fills[task] >= 0:
                filling[there], num_complete[there] = task, 0
                bucket, moment = bucket_first[fills[task]], moment_first[task]
                for k in range(moment_first[task + 1] - moment):
                    moment_s[moment + k] = now + bucket_ready_s[bucket + k]
                queued = push_event(heap_s, heap_machine, queued, moment_s[moment], there)
            if chooses:
                due[there] = account_task(stages, begun, room, there, stage_of[task], task)
            if not is_queued:
                for post in range(post_first[task], post_first[task + 1]):
                    fed = reader[post_message[post]]
                    if _tell(missing, ready_s, fed, end + latency[post_message[post]]):
                        other = machine_of[fed]
                        if running[other] < 0 or ready_s[fed] > free_s[other]:
                            queued = push_event(heap_s, heap_machine, queued, ready_s[fed], other)
    return num_begun


def _begin_bucket(
    script: Script, state: State, times: Times, queued: int, group: int, now: float
) -> int:
    """The next bucket of a group takes its place on all of its lanes; the number of events."""
    machine_of, group_first, group_task = script.task_machine, script.group_first, script.group_task
    lanes, slows = script.lane_channel, script.group_slows[group]
    free_s, moment_s, filling = state.free_s, state.moment_s, state.filling
    bucket = script.bucket_first[group] + state.group_begun[group]
    state.group_begun[group] += 1
    start = now
    for at in range(script.lane_first[group], script.lane_first[group + 1]):
        start = max(start, state.channel_free_s[lanes[at]])
    beside = 0.0
    for at in range(group_first[group], group_first[group + 1]):
        until = free_s[machine_of[group_task[at]]]
        beside = max(beside, until - start) if until < math.inf else beside
    end = end_bucket(
        start, script.bucket_seconds[bucket], beside, slows, script.group_slowed[group]
    )
    times.bucket_start[bucket], times.bucket_end[bucket] = start, end
    for at in range(script.lane_first[group], script.lane_first[group + 1]):
        state.channel_free_s[lanes[at]] = end
    for at in range(group_first[group], group_first[group + 1]):
        there = machine_of[group_task[at]]
        if start < free_s[there] < math.inf and slows > 0:
            free_s[there] = move_moment(free_s[there], start, end, slows)
            times.task_end[state.running[there]] = free_s[there]
            queued = push_event(state.heap_s, state.heap_machine, queued, free_s[there], there)
            task = filling[there]
            if task >= 0:
                first = state.moment_first[task] + state.num_complete[there]
                for k in range(first, state.moment_first[task + 1]):
                    moment_s[k] = move_moment(moment_s[k], start, end, slows)
                queued = push_event(
                    state.heap_s, state.heap_machine, queued, moment_s[first], there
                )
    if bucket + 1 == script.bucket_first[group + 1]:
        for at in range(group_first[group], group_first[group + 1]):
            task = group_task[at]
            if _tell(state.missing, state.ready_s, task, end):
                ready = state.ready_s[task]
                queued = push_event(
                    state.heap_s, state.heap_machine, queued, ready, machine_of[task]
                )
    return queued


def end_bucket(start: float, seconds: float, beside: float, slows: float, slowed: float) -> float:
    """When a bucket ends beside tasks of which the last would end `beside` seconds later alone."""
    if beside <= 0:
        return start + seconds
    slow, until = seconds * (1 + slowed), beside * (1 + slows)
    return start + slow if slow <= until else start + until + (seconds - until / (1 + slowed))


def move_moment(moment: float, start: float, end: float, slows: float) -> float:
    """A moment of a task, when a bucket slows it from `start` to `end`."""
    if moment <= start:
        return moment
    slow = start + (moment - start) * (1 + slows)
    return slow if slow <= end else moment + (end - start) * slows / (1 + slows)


def _tell(missing: Ints, ready_s: Floats, task: int, arrival: float) -> bool:
    """A task learns when a message arrives; whether it was the last one."""
    missing[task] -= 1
    if ready_s[task] < arrival:
        ready_s[task] = arrival
    return bool(missing[task] == 0)
