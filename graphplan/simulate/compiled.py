"""Compiled: a program as flat arrays: the script that is played, and what its numbers mean.

Tasks are numbered device by device in the order of the lists, messages by wire and micro-batch.
Slots are those of `graphplan.play.script`: behind a task, or at the start of a device.
"""

from __future__ import annotations

from typing import NamedTuple

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


def name_task(tasks: Tasks, task: int) -> str:
    """The text of a task, such as `2F0`."""
    return f"{tasks.stage[task]}{KINDS[tasks.kind[task]]}{tasks.micro_batch[task]}"


def name_message(wires: Wires, wire: int, micro_batch: int) -> str:
    """The text of the transfer that a message belongs to."""
    kind = "B" if wires.backward[wire] else "F"
    return f"{wires.src[wire]}>{wires.dst[wire]}{kind}{micro_batch}"
