"""Task and Transfer: what a device does, as values with a short text that parses back.

2F0     stage 2 runs the forward of micro-batch 0        kinds F, B, I, W
2R7     stage 2 reduces its gradients over its replicas after micro-batch 7
2U7     stage 2 applies the update after micro-batch 7
0>2F3   stage 0 sends stage 2 the activations of its micro-batch 3
2>0B3   stage 2 sends stage 0 the gradients of its micro-batch 3
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from graphplan.nouns.names import shorten

Kind = Literal["F", "B", "I", "W", "R", "U"]
COMPUTE_KINDS = ("F", "B", "I", "W")

_NUMBER = "(0|[1-9][0-9]{0,8})"
_TASK = re.compile(rf"{_NUMBER}([FBIWRU]){_NUMBER}")
_TRANSFER = re.compile(rf"{_NUMBER}>{_NUMBER}([FB]){_NUMBER}")


class Task(msgspec.Struct, frozen=True, order=True, gc=False, forbid_unknown_fields=True):
    """One unit of work on one device."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


class Transfer(msgspec.Struct, frozen=True, order=True, gc=False, forbid_unknown_fields=True):
    """A tensor's way from one stage to another; in a device's list it is a send or a receive,
    depending on which end the device hosts."""

    src: int
    dst: int
    kind: Literal["F", "B"]
    micro_batch: int
    """The sender's micro-batch."""

    def __str__(self) -> str:
        return f"{self.src}>{self.dst}{self.kind}{self.micro_batch}"


Instruction = Task | Transfer


def parse_task(text: str) -> Task:
    """The task that prints as `text`."""
    match = _TASK.fullmatch(text)
    if match is None:
        raise ValueError(f"{shorten(text)} is not a task such as '2F0'")
    return Task(int(match[1]), match[2], int(match[3]))  # type: ignore[arg-type]


def parse_instruction(text: str) -> Instruction:
    """The task or transfer that prints as `text`."""
    match = _TRANSFER.fullmatch(text)
    if match is None:
        return parse_task(text)
    return Transfer(int(match[1]), int(match[2]), match[3], int(match[4]))  # type: ignore[arg-type]
