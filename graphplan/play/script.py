"""Script: what the player plays, as flat arrays, and the times that come of it.

A *machine* runs one task at a time: a device where programs are played, a group of devices that run
the same stages where orders are searched for. After a task, and before the first one of a machine,
lies a *slot*: what is posted there is posted at that moment. Task k has the slot k, the start of
machine d has the slot `num_tasks + d`.

Messages are of two sorts, one of which a script has throughout:

    queued      both ends post them; they occupy a channel, first come, first served
    delayed     they set out when their sender ends and arrive `latency_s` later, whatever the rest

A *group* is the R tasks of a stage and micro-batch, one on each replica. It may have *buckets*:
they are complete so many seconds after the start of the task that *fills* them, on every replica
the last backward in front of its R, and are reduced one after the other while that task runs. A
bucket occupies all lanes of its group, which are channels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KINDS = "FBIWRU"
FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD, REDUCE, UPDATE = range(6)


class Script(NamedTuple):
    """Tasks and messages, ready to be played."""

    line_first: Ints
    """Machine -> its first place in `line`; one more entry than machines."""
    line: Ints
    """Tasks in the order of their machines; empty where the player chooses."""
    task_machine: Ints
    task_seconds: Floats
    task_missing: Ints
    """Messages that each task waits for."""
    task_group: Ints
    """The all-reduce that a task is part of, -1 for none."""
    post_first: Ints
    """Slot -> its first place in `post_message`; one more entry than slots."""
    post_message: Ints
    message_reader: Ints
    """The first task that waits for a message; the number of tasks when none does."""
    message_channel: Ints
    """-1 for delayed messages."""
    message_seconds: Floats
    message_latency_s: Floats
    group_first: Ints
    group_task: Ints
    num_channels: int
    is_queued: bool
    task_fills: Ints
    """The group whose buckets a task completes, -1 for none."""
    bucket_first: Ints
    """Group -> its first bucket; one more entry than groups."""
    bucket_ready_s: Floats
    """From the start of the task that fills it."""
    bucket_seconds: Floats
    lane_first: Ints
    """Group -> its first place in `lane_channel`; one more entry than groups."""
    lane_channel: Ints
    group_slows: Floats
    """By which share a task takes longer while a bucket of the group is on its way."""
    group_slowed: Floats
    """By which share a bucket takes longer while one of its machines computes."""


class Tasks(NamedTuple):
    """What the tasks of all devices are; `first[d]` is the first one of device d, `first[-1]` their
    number."""

    first: Ints
    device: Ints
    stage: Ints
    kind: Ints
    micro_batch: Ints


class Times(NamedTuple):
    """When everything happened; a task that never ran has a negative end and no valid start."""

    task_start: Floats
    task_end: Floats
    message_start: Floats
    """When the first byte enters the channel; negative for a message that was never sent."""
    bucket_start: Floats
    """Negative for one that was never complete."""
    bucket_end: Floats
    sequence: Ints
    """The tasks that ran, in the order in which they began."""

    @property
    def makespan_s(self) -> float:
        """The end of the last task."""
        return float(self.task_end.max(initial=0.0))


def point_rows(num_rows: int, row: Ints) -> Ints:
    """Where each row starts when its items lie together: one more entry than rows."""
    first = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=num_rows), out=first[1:])
    return first


class Buckets(NamedTuple):
    """The last eight fields of a script."""

    task_fills: Ints
    bucket_first: Ints
    bucket_ready_s: Floats
    bucket_seconds: Floats
    lane_first: Ints
    lane_channel: Ints
    group_slows: Floats
    group_slowed: Floats


def no_buckets(num_tasks: int) -> Buckets:
    """Of a script without reductions."""
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    first = np.zeros(1, dtype=np.int64)
    fills = np.full(num_tasks, -1, dtype=np.int64)
    return Buckets(fills, first, nothing, nothing, first, none, nothing, nothing)


def find_fillers(tasks: Tasks, group: Ints) -> Ints:
    """By task: the group whose buckets it completes: the last B or W of a stage on a device in
    front of each of its R's; -1 for all others."""
    fills = np.full(len(tasks.kind), -1, dtype=np.int64)
    rows = np.flatnonzero(
        (tasks.kind == BACKWARD) | (tasks.kind == WEIGHT_GRAD) | (tasks.kind == REDUCE)
    )
    owner = tasks.device[rows] * (int(tasks.stage.max(initial=0)) + 1) + tasks.stage[rows]
    order = np.argsort(owner, kind="stable")
    rows, owner = rows[order], owner[order]
    at = np.flatnonzero(tasks.kind[rows] == REDUCE)
    at = at[at > 0]
    at = at[(owner[at - 1] == owner[at]) & (tasks.kind[rows[at - 1]] != REDUCE)]
    fills[rows[at - 1]] = group[rows[at]]
    return fills


def gather_groups(stage: Ints, kind: Ints, micro_batch: Ints) -> tuple[Ints, Ints, Ints]:
    """The group of every task, and the tasks of every group: the R's of a stage and micro-batch."""
    group = np.full(len(kind), -1, dtype=np.int64)
    members = np.flatnonzero(kind == REDUCE)
    if not len(members):
        return group, np.zeros(1, dtype=np.int64), members
    width = int(micro_batch.max()) + 1
    _, number = np.unique(stage[members] * width + micro_batch[members], return_inverse=True)
    group[members] = number
    order = np.argsort(number, kind="stable")
    return group, point_rows(int(number.max()) + 1, number), members[order]
