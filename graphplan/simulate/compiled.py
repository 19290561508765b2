"""Compiled: a program as flat arrays: the script that is played, and what its numbers mean.

Tasks are numbered device by device in the order of the lists, messages by wire and micro-batch.
Slots are those of `graphplan.play.script`: behind a task, or at the start of a device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.play.cast import Wires
from graphplan.play.script import KINDS, Ints, Script, Tasks


class Messages(NamedTuple):
    """The messages of all transfers; `consumer` is the first task that waits for a message, the
    number of tasks when none does."""

    wire: Ints
    micro_batch: Ints
    consumer: Ints
    send_slot: Ints
    receive_slot: Ints


class Compiled(NamedTuple):
    """A program that is ready to run: every transfer has two ends, every need has a message."""

    num_devices: int
    tasks: Tasks
    messages: Messages
    wires: Wires
    channels: tuple[str, ...]
    script: Script

    def list_lanes(self) -> tuple[Ints, Ints]:
        """Every bucket with every lane that it occupies, as two columns."""
        script = self.script
        groups = self.group_by_bucket
        widths = np.diff(script.lane_first)[groups]
        bucket = np.repeat(np.arange(len(groups)), widths)
        place = np.arange(len(bucket)) - np.repeat(np.cumsum(widths) - widths, widths)
        return bucket, script.lane_channel[script.lane_first[groups[bucket]] + place]

    @property
    def group_by_bucket(self) -> Ints:
        """The group of every bucket."""
        counts = np.diff(self.script.bucket_first)
        return np.repeat(np.arange(len(counts)), counts)

    def reduce_of(self, bucket: int) -> int:
        """The first R that waits for a bucket."""
        group = int(np.searchsorted(self.script.bucket_first, bucket, side="right")) - 1
        return int(self.script.group_task[self.script.group_first[group]])


def name_task(tasks: Tasks, task: int) -> str:
    """The text of a task, such as `2F0`."""
    return f"{tasks.stage[task]}{KINDS[tasks.kind[task]]}{tasks.micro_batch[task]}"


def name_message(wires: Wires, wire: int, micro_batch: int) -> str:
    """The text of the transfer that a message belongs to."""
    kind = "B" if wires.backward[wire] else "F"
    return f"{wires.src[wire]}>{wires.dst[wire]}{kind}{micro_batch}"
