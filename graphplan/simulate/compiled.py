"""Compiled: a program as flat arrays, all that the engines read.

Tasks are numbered device by device in the order of the lists, messages by wire and micro-batch. A
*slot* is a moment of a device: before its first task, or after one of them; what the list holds
there is posted at that moment. Device d's tasks k have the slots k + d, its last slot is one more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KINDS = "FBIWRU"
FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD, REDUCE, UPDATE = range(6)


class Tasks(NamedTuple):
    """The tasks of all devices; `first[d]` is the first one of device d, `first[-1]` their number.

    `seat` numbers the pairs (stage, device that hosts it).
    """

    first: Ints
    device: Ints
    stage: Ints
    kind: Ints
    micro_batch: Ints
    seat: Ints
    seconds: Floats
    group: Ints
    """Barrier of an all-reduce, -1 for other tasks."""


class Messages(NamedTuple):
    """The messages of all transfers; `consumer` is the first task that waits for a message, the
    number of tasks when none does."""

    wire: Ints
    micro_batch: Ints
    channel: Ints
    seconds: Floats
    latency_s: Floats
    consumer: Ints
    send_slot: Ints
    receive_slot: Ints


class Wires(NamedTuple):
    """The rows of `TransferPrice.messages`: which bytes can pass between which two devices."""

    src: Ints
    """Sending stage."""
    dst: Ints
    src_device: Ints
    dst_device: Ints
    src_seat: Ints
    dst_seat: Ints
    backward: Ints
    transfer: Ints
    channel: Ints
    seconds: Floats
    latency_s: Floats


class Compiled(NamedTuple):
    """A program that is ready to run: every transfer has two ends, every need has a message."""

    num_devices: int
    tasks: Tasks
    messages: Messages
    wires: Wires
    channels: tuple[str, ...]
    post_first: Ints
    """Slot -> first position in `post_message`; one more than there are slots."""
    post_message: Ints
    num_missing: Ints
    """Messages that each task waits for, and one more for its device, and one more for the other
    replicas of an all-reduce; the last entry stands for no task."""
    group_first: Ints
    group_task: Ints
    has_shared_channel: bool
    """Whether two pairs of devices use one channel, so that the order on it depends on time."""


class Times(NamedTuple):
    """When everything happened; a task that never ran has a negative end and no valid start."""

    task_start: Floats
    task_end: Floats
    message_start: Floats
    """When the first byte enters the channel; negative for a message that was never sent."""
