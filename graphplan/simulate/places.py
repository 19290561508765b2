"""Places: where in the lists the forward and the backward of every seat's micro-batches stand."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.simulate.compiled import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    KINDS,
    WEIGHT_GRAD,
    Ints,
    Tasks,
)
from graphplan.simulate.wiring import Wiring


class Places(NamedTuple):
    """Task numbers by `first[seat] + micro_batch`; the number of tasks where there is none."""

    first: Ints
    num_micro_batches: Ints
    """By stage: one more than the largest number in the program."""
    forward: Ints
    backward: Ints
    """Tasks B or I, whose end gives the input gradients."""

    def find(self, seat: Ints, micro_batch: Ints, backward: Ints) -> Ints:
        """Forward (backward = 0) or backward (1) tasks."""
        key = self.first[seat] + micro_batch
        found: Ints = np.where(backward == 1, self.backward[key], self.forward[key])
        return found


def find_places(wiring: Wiring, tasks: Tasks, num_micro_batches: Ints) -> Places:
    """The places, after checking that no task is there twice and that each comes after what it
    needs on its own device."""
    sizes = num_micro_batches[wiring.seat_stage]
    first = np.concatenate(([0], np.cumsum(sizes)))
    key = first[tasks.seat] + tasks.micro_batch
    tables = {
        name: _tabulate(tasks, key, int(first[-1]), kinds)
        for name, kinds in (
            ("forward", (FORWARD,)),
            ("backward", (BACKWARD, INPUT_GRAD)),
            ("input_grad", (INPUT_GRAD,)),
            ("weight_grad", (WEIGHT_GRAD,)),
        )
    }
    places = Places(first, num_micro_batches, tables["forward"], tables["backward"])
    backward = _select(tasks, (BACKWARD, INPUT_GRAD))
    _check_before(tasks, backward, places.forward[key[backward]], "F")
    weight = _select(tasks, (WEIGHT_GRAD,))
    _check_before(tasks, weight, tables["input_grad"][key[weight]], "I")
    _check_local_needs(wiring, tasks, places)
    return places


def cover_micro_batches(micro_batch: Ints, size: Ints, sender_size: Ints) -> tuple[Ints, Ints]:
    """First and last micro-batch of a sender that hold samples of a reader's micro-batch."""
    if np.array_equal(size, sender_size):
        return micro_batch, micro_batch
    start = micro_batch * size
    return start // sender_size, (start + size - 1) // sender_size


def count_out(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Every number of every range first..last: the position of its range, and the number."""
    counts = last - first + 1
    if len(counts) == 0 or counts.max() == 1:
        return np.arange(len(first)), first
    owner = np.repeat(np.arange(len(first)), counts)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, first[owner] + offset


def name_task(tasks: Tasks, task: int) -> str:
    """The text of a task, such as `2F0`."""
    return f"{tasks.stage[task]}{KINDS[tasks.kind[task]]}{tasks.micro_batch[task]}"


def _select(tasks: Tasks, kinds: tuple[int, ...]) -> Ints:
    mask = tasks.kind == kinds[0]
    for kind in kinds[1:]:
        mask |= tasks.kind == kind
    return np.flatnonzero(mask)


def _tabulate(tasks: Tasks, key: Ints, num_keys: int, kinds: tuple[int, ...]) -> Ints:
    chosen = _select(tasks, kinds)
    table = np.full(num_keys, len(tasks.stage), dtype=np.int64)
    table[key[chosen]] = chosen
    for twice in chosen[table[key[chosen]] != chosen][:1]:
        raise InvalidProgram(
            f"Device {tasks.device[twice]} runs {name_task(tasks, twice)} twice, or both B and I"
            " of that micro-batch.",
            remedy="Keep one of them.",
        )
    return table


def _check_before(tasks: Tasks, chosen: Ints, needed: Ints, kind: str) -> None:
    """Each chosen task must come after the needed one."""
    for late in np.flatnonzero(needed > chosen)[:1]:
        task = int(chosen[late])
        text = f"{tasks.stage[task]}{kind}{tasks.micro_batch[task]}"
        _refuse(tasks, task, text, int(needed[late]))


def _check_local_needs(wiring: Wiring, tasks: Tasks, places: Places) -> None:
    chosen = _select(tasks, (FORWARD, BACKWARD, INPUT_GRAD))
    backward = (tasks.kind[chosen] != FORWARD).astype(np.int64)
    owner, seat = wiring.local_needs.expand(2 * tasks.seat[chosen] + backward)
    task, backward = chosen[owner], backward[owner]
    stage = wiring.seat_stage[seat]
    reach = cover_micro_batches(
        tasks.micro_batch[task], wiring.size[tasks.stage[task]], wiring.size[stage]
    )
    again, micro_batch = count_out(*reach)
    task, seat, stage, backward = task[again], seat[again], stage[again], backward[again]
    known = micro_batch < places.num_micro_batches[stage]
    needed = np.full(len(task), len(tasks.stage), dtype=np.int64)
    needed[known] = places.find(seat[known], micro_batch[known], backward[known])
    for late in np.flatnonzero(needed > task)[:1]:
        text = f"{stage[late]}{'B' if backward[late] else 'F'}{micro_batch[late]}"
        _refuse(tasks, int(task[late]), text, int(needed[late]))


def _refuse(tasks: Tasks, task: int, text: str, needed: int) -> NoReturn:
    how = f"does not run {text}" if needed == len(tasks.stage) else f"runs {text} only later"
    raise InvalidProgram(
        f"Deadlock: device {tasks.device[task]} runs {name_task(tasks, task)}, which needs {text};"
        f" the device {how}.",
        remedy=f"Put {text} before {name_task(tasks, task)}.",
    )
