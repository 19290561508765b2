"""Listing: the instructions of a program as columns, one row for each task and each transfer."""

from __future__ import annotations

from itertools import chain, compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphplan.errors import InvalidProgram
from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Task, Transfer
from graphplan.simulate.compiled import KINDS, Ints

_CODE_BY_BYTE = np.full(256, -1, dtype=np.int64)
_CODE_BY_BYTE[[ord(kind) for kind in KINDS]] = np.arange(len(KINDS))


class Listing(NamedTuple):
    """Tasks (`task_*`) and transfers (`post_*`) in the order of the lists, device by device."""

    num_devices: int
    task_first: Ints
    """Device -> its first task; one more entry than devices."""
    task_stage: Ints
    task_kind: Ints
    task_micro_batch: Ints
    post_device: Ints
    post_src: Ints
    post_dst: Ints
    post_backward: Ints
    post_micro_batch: Ints
    post_after: Ints
    """Tasks in front of the transfer, those of the devices before included."""

    def name_post(self, post: int) -> str:
        """The text of a transfer."""
        kind = "B" if self.post_backward[post] else "F"
        return f"{self.post_src[post]}>{self.post_dst[post]}{kind}{self.post_micro_batch[post]}"


def list_instructions(program: Program) -> Listing:
    """The columns of a program."""
    lists = program.instructions_by_device
    flat = list(chain.from_iterable(lists))
    is_task = np.fromiter([type(each) is Task for each in flat], dtype=bool, count=len(flat))
    tasks: list[Task] = list(compress(flat, is_task.tolist()))  # type: ignore[arg-type]
    posts: list[Transfer] = list(compress(flat, (~is_task).tolist()))  # type: ignore[arg-type]
    ends = np.cumsum([len(each) for each in lists], dtype=np.int64)
    num_before = np.concatenate(([0], np.cumsum(is_task, dtype=np.int64)))
    device = np.repeat(np.arange(len(lists)), np.diff(ends, prepend=0))
    return Listing(
        num_devices=len(lists),
        task_first=np.concatenate(([0], num_before[ends])),
        task_stage=_to_ints([each.stage for each in tasks]),
        task_kind=_to_codes([each.kind for each in tasks]),
        task_micro_batch=_to_ints([each.micro_batch for each in tasks]),
        post_device=device[~is_task],
        post_src=_to_ints([each.src for each in posts]),
        post_dst=_to_ints([each.dst for each in posts]),
        post_backward=_to_codes([each.kind for each in posts]),
        post_micro_batch=_to_ints([each.micro_batch for each in posts]),
        post_after=num_before[:-1][~is_task],
    )


def _to_ints(numbers: list[int]) -> Ints:
    try:
        return np.fromiter(numbers, dtype=np.int64, count=len(numbers))
    except OverflowError as error:
        raise InvalidProgram(
            f"{max(numbers)} is not a stage or micro-batch number.",
            remedy="Write the program with numbers that the plan has.",
        ) from error


def _to_codes(kinds: list[str]) -> Ints:
    """Positions in KINDS; for transfers F is 0 and B is 1, which makes them a flag."""
    text: NDArray[np.uint8] = np.frombuffer("".join(kinds).encode(), dtype=np.uint8)
    return _CODE_BY_BYTE[text]
