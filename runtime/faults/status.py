"""Status: where a rank is in its program, in shared memory that outlives the process.

The executor writes two numbers for every instruction, which costs a tenth of a microsecond; the
monitor of the rank and, after a sudden death, the launcher read them.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graphplan.nouns.task import Instruction, Task

PHASE, STEP, POSITION, WAITING = range(4)
"""Where the numbers of a `Place` are in memory."""


class Phase(enum.IntEnum):
    """What a rank does, roughly."""

    STARTING = 0
    CAPTURING = 1
    CONNECTING = 2
    READING_DATA = 3
    TRAINING = 4
    SAVING = 5
    ENDING = 6


class Place(NamedTuple):
    """A point in the run: the instruction is a position in the device's list."""

    phase: int
    step: int
    position: int
    is_waiting: int

    def describe(self, line: Sequence[Instruction]) -> str:
        """`stage 2, task 2F1, step 3`, or what else the rank does."""
        if self.phase != Phase.TRAINING or not 0 <= self.position < len(line):
            return Phase(self.phase).name.lower().replace("_", " ")
        instruction = line[self.position]
        name = f"stage {instruction.stage}, task" if isinstance(instruction, Task) else "transfer"
        waiting = ", waiting for its tensors" if self.is_waiting else ""
        return f"{name} {instruction}{waiting}, step {self.step}"


class Status:
    """The place of this rank; in a file when a path is given."""

    def __init__(self, path: Path | None = None) -> None:
        size = 8 * len(Place._fields)
        if path is None:
            self._memory: mmap.mmap | bytearray = bytearray(size)
        else:
            path.write_bytes(bytes(size))
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), size)
        self.numbers = memoryview(self._memory).cast("q")
        """A `Place`, each number written by whoever knows it."""

    def enter(self, phase: Phase, *, step: int | None = None) -> None:
        """Begin a phase."""
        if step is not None:
            self.numbers[STEP] = step
        self.numbers[PHASE] = phase

    def read(self) -> Place:
        """Where the rank is now."""
        return Place(*self.numbers)


def read_status(path: Path) -> Place | None:
    """Where a rank was when its process ended; None when it had not begun."""
    try:
        numbers = memoryview(path.read_bytes()).cast("q")
    except (OSError, TypeError):
        return None
    return Place(*numbers) if len(numbers) == len(Place._fields) else None
