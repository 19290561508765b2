"""Script: what the player plays, as flat arrays, and the times that come of it.

A *machine* runs one task at a time: a device where programs are played, a group of devices that run
the same stages where orders are searched for. After a task, and before the first one of a machine,
lies a *slot*: what is posted there is posted at that moment. Task k has the slot k, the start of
machine d has the slot `num_tasks + d`.

Messages are of two sorts, one of which a script has throughout:

    queued      both ends post them; they occupy a channel, first come, first served
    delayed     they set out when their sender ends and arrive `latency_s` later, whatever the rest
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
