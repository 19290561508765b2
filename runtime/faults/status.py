"""Status: where a rank is in its program, in shared memory that outlives the process.

The executor writes two numbers for every instruction, which costs a tenth of a microsecond; the
monitor of the rank, those of other ranks of the host and, after a sudden death, the launcher read
them.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graphplan.nouns.task import Instruction, Task

PHASE, STEP, POSITION, WAITING, BEAT = range(5)
"""Where the numbers of a `Place` are in memory, and behind them the count of signs of life."""


class Phase(enum.IntEnum):
    """What a rank does, roughly."""

    STARTING = 0
    CONNECTING = 1
    """With the other ranks: makes groups, compares plans."""
    BUILDING = 2
    """Alone: imports the model file, calls `build()`, captures."""
    LOADING = 3
    """Alone: reads a checkpoint, and the batches before it."""
    READING_DATA = 4
    TRAINING = 5
    SAVING = 6
    REPORTING = 7
    """With the other ranks."""
    REFERENCE = 8
    """Rank 0 trains in one process, the others wait."""
    ENDING = 9
    DONE = 10


class Place(NamedTuple):
    """A point in the run: the instruction is a position in the device's list."""

    phase: int
    step: int
    position: int
    is_waiting: int

    def describe(self, line: Sequence[Instruction]) -> str:
        """`stage 2, task 2F1, step 3`, or what else the rank does."""
        if self.phase != Phase.TRAINING or not 0 <= self.position < len(line):
            known = self.phase in list(map(int, Phase))
            return Phase(self.phase).name.lower().replace("_", " ") if known else "unknown"
        instruction = line[self.position]
        name = f"stage {instruction.stage}, task" if isinstance(instruction, Task) else "transfer"
        waiting = ", waiting for its tensors" if self.is_waiting else ""
        return f"{name} {instruction}{waiting}, step {self.step}"


class Status:
    """The place of this rank; in a file when a path is given."""

    def __init__(self, path: Path | None = None) -> None:
        size = 8 * (BEAT + 1)
        if path is None:
            self._memory: mmap.mmap | bytearray = bytearray(size)
        else:
            path.write_bytes(bytes(size))
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), size)
        self.numbers = memoryview(self._memory).cast("q")
        """A `Place` and the signs of life, each number written by whoever knows it."""

    def enter(self, phase: Phase, *, step: int | None = None) -> None:
        """Begin a phase."""
        if step is not None:
            self.numbers[STEP] = step
        self.numbers[PHASE] = phase

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """What happens inside waits for other ranks: to be idle there is no hang of this one."""
        before, self.numbers[WAITING] = self.numbers[WAITING], 1
        try:
            yield
        finally:
            self.numbers[WAITING] = before

    def read(self) -> Place:
        """Where the rank is now."""
        return Place(*self.numbers[:BEAT])


def read_status(path: Path) -> tuple[Place, int] | None:
    """Where a rank is or was when its process ended, and its signs of life; None if not begun."""
    try:
        numbers = memoryview(path.read_bytes()).cast("q")
    except (OSError, TypeError):
        return None
    return (Place(*numbers[:BEAT]), numbers[BEAT]) if len(numbers) == BEAT + 1 else None
