"""Freedom: what a machine that chooses may take next, and the memory that it accounts for."""

from __future__ import annotations

from typing import NamedTuple

from graphplan.play.script import Floats, Ints

NUM_COLUMNS = 8
FIRST, COUNT, NUM_ROWS, LIMIT, SAVED, KEPT, WORKSPACE, HAS_UPDATE = range(NUM_COLUMNS)
"""Columns of `Freedom.stages`."""
FORWARDS, GRADIENTS, WEIGHTS, FLYING = range(4)
"""Columns of what the stages have begun: tasks by row, and micro-batches in flight."""


class Freedom(NamedTuple):
    """What a machine may choose among, and what it has to obey; its tasks are those of a Shop."""

    stage_of: Ints
    """By task."""
    priority: Floats
    """By task; the larger goes first."""
    stages: Ints
    """By stage, one row after the other: the number of its first task, where rows of `COUNT` tasks
    follow one another; the rows to choose among (1: forwards, 2: whole, 3: split backwards); most
    micro-batches between F and the end of B or I; bytes from F, from I, and of a running task;
    whether an update follows its last task."""
    hosted_first: Ints
    """Machine -> its first place in `hosted`."""
    hosted: Ints
    """Stages of the machines."""
    room: Ints
    """By machine: bytes for activations and workspace."""
    patience: float


def choose_task(
    stages: Ints,
    begun: Ints,
    hosted: Ints,
    space: int,
    priority: Floats,
    missing: Ints,
    ready_s: Floats,
    seconds: Floats,
    patience: float,
    now: float,
) -> int:
    """The most urgent ready task, -1 if there is none or a coming one is worth waiting for.

    The first look finds the best that is ready, the second one what is better and on its way.
    """
    best, urgency, until = -1, 0.0, now
    for look in range(2):
        reserved = 0
        for at in range(len(hosted) - 1, -1, -1):
            row_of, own = NUM_COLUMNS * hosted[at], 4 * hosted[at]
            count, saved = stages[row_of + COUNT], stages[row_of + SAVED]
            room, flying = space - stages[row_of + WORKSPACE], begun[own + FLYING]
            for row in range(stages[row_of + NUM_ROWS] if room >= 0 else 0):
                done = begun[own + row]
                task = stages[row_of + FIRST] + row * count + done
                if done == count or missing[task] > 0:
                    continue
                if row == FORWARDS and (
                    saved + reserved > room or flying >= stages[row_of + LIMIT]
                ):
                    continue
                if look == 0 and ready_s[task] <= now:
                    if best < 0 or priority[task] > urgency:
                        best, urgency = task, priority[task]
                elif look == 1 and now < ready_s[task] <= until and priority[task] > urgency:
                    return -1
            if flying == 0 and begun[own] < count:
                reserved += saved
        if best < 0 or patience == 0.0:
            break
        until = now + patience * seconds[best]
    return best


def account_task(stages: Ints, begun: Ints, room: Ints, machine: int, stage: int, task: int) -> int:
    """Count a task that begins and the memory that it takes; the update that comes next, or -1."""
    row_of = NUM_COLUMNS * stage
    count, num_rows = stages[row_of + COUNT], stages[row_of + NUM_ROWS]
    row = (task - stages[row_of + FIRST]) // count
    if row > WEIGHTS:
        return -1
    begun[4 * stage + row] += 1
    if row == FORWARDS and num_rows > 1:
        begun[4 * stage + FLYING] += 1
        room[machine] -= stages[row_of + SAVED]
    is_last = row == num_rows - 1 and begun[4 * stage + row] == count
    return stages[row_of + FIRST] + 4 * count - 1 if is_last and stages[row_of + HAS_UPDATE] else -1


def release_task(
    stages: Ints, begun: Ints, room: Ints, machine: int, stage: int, task: int
) -> None:
    """Free what a task that has ended no longer needs."""
    row_of = NUM_COLUMNS * stage
    row = (task - stages[row_of + FIRST]) // stages[row_of + COUNT]
    if row == GRADIENTS:
        begun[4 * stage + FLYING] -= 1
        room[machine] += stages[row_of + SAVED] - stages[row_of + KEPT]
    elif row == WEIGHTS:
        room[machine] += stages[row_of + KEPT]
