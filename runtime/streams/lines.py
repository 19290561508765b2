"""Line: what one device repeats for every micro-batch when batches follow one another.

A plan's program has a warm-up, a steady part and a drain. In a stream, a device repeats its steady
pattern: after the forward of micro-batch i it runs, of each of its stages, the backward of
micro-batch i - w_s. What belongs to a batch is called by the names that the plan's program has for
it, so that nothing is resolved twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from graphplan.errors import InvalidOption
from graphplan.nouns.plan import Plan
from graphplan.nouns.task import COMPUTE_KINDS, Instruction, Kind, Task, Transfer


class Step(NamedTuple):
    """An instruction of the plan's program, for one batch of the stream."""

    batch: int
    instruction: Instruction


class Beat(NamedTuple):
    """A task of the pattern: at micro-batch i it runs micro-batch i - lag."""

    stage: int
    kind: Kind
    lag: int


class Epochs(NamedTuple):
    """The pattern of a device in whole updates: at update t it runs micro-batches t m + lead."""

    first: tuple[Lead, ...]
    """Of the update with which a pipeline starts from empty."""
    steady: tuple[Lead, ...]


class Lead(NamedTuple):
    """A task of an update, by its distance from the update's first micro-batch."""

    stage: int
    kind: Kind
    lead: int


class Line:
    """The pattern of a device, with what follows and what precedes each of its tasks."""

    def __init__(
        self,
        plan: Plan,
        device: int,
        instructions: Sequence[Instruction],
        *,
        epochs: Epochs | None = None,
    ) -> None:
        self.count = plan.prices.num_micro_batches(0)
        """Micro-batches of a batch."""
        self.accumulate = plan.policy.accumulate
        self.epochs = epochs
        self.hosted = plan.prices.stages_by_device[device]
        self.beats = find_beats(plan, device, instructions)
        self.lag = max((beat.lag for beat in self.beats), default=0)
        self.sends: dict[Task, list[Transfer]] = {}
        self.receives: dict[Task, list[Transfer]] = {}
        self.closings: dict[Task, list[Task]] = {}
        """Reductions and updates by the last backward that they cover."""
        known = {each for each in instructions if isinstance(each, Task)}
        for each in instructions:
            if isinstance(each, Transfer):
                kinds: tuple[Kind, ...] = ("F",) if each.kind == "F" else ("B", "I")
                found = self.sends if each.src in self.hosted else self.receives
                end = each.src if each.src in self.hosted else each.dst
                found.setdefault(_pick(end, kinds, each.micro_batch, known), []).append(each)
            elif each.kind not in COMPUTE_KINDS:
                task = _pick(each.stage, ("B", "W"), each.micro_batch, known)
                self.closings.setdefault(task, []).append(each)

    def walk(self, first: int) -> Iterator[Step]:
        """All tasks from an empty pipeline on, without an end; `first` is the first batch."""
        start = first * self.count
        if self.epochs is None:
            for i in itertools.count(start):
                for stage, kind, lag in self.beats:
                    if i - lag >= start:
                        batch, m = divmod(i - lag, self.count)
                        yield Step(batch, Task(stage, kind, m))
            return
        for update in itertools.count(start // self.accumulate):
            is_first = update * self.accumulate == start
            for stage, kind, lead in self.epochs.first if is_first else self.epochs.steady:
                batch, m = divmod(update * self.accumulate + lead, self.count)
                yield Step(batch, Task(stage, kind, m))

    def list_messages(self, step: Step, hosted: Sequence[int]) -> list[Step]:
        """What a task of this device sends to a device with certain stages, in order."""
        assert isinstance(step.instruction, Task)
        sends = self.sends.get(step.instruction, ())
        return [Step(step.batch, each) for each in sends if each.dst in hosted]


def _pick(stage: int, kinds: Iterable[Kind], micro_batch: int, known: set[Task]) -> Task:
    """The task of one of these kinds that there is."""
    tasks = (Task(stage, kind, micro_batch) for kind in kinds)
    return next(task for task in tasks if task in known)


def find_beats(plan: Plan, device: int, line: Sequence[Instruction]) -> tuple[Beat, ...]:
    """The pattern that a device repeats for every micro-batch."""
    hosted = plan.prices.stages_by_device[device]
    if len(hosted) == 1:
        stage = hosted[0]
        beats = [Beat(stage, "F", 0)]
        if plan.prices.stages[stage].needs_backward:
            beats.append(Beat(stage, "B", plan.policy.warmups[stage]))
        return tuple(beats)
    tasks = [each for each in line if isinstance(each, Task) and each.kind in COMPUTE_KINDS]
    found = read_beats(tasks)
    if found is None:
        raise InvalidOption(
            f"The order of device {device} never becomes steady in a batch of"
            f" {plan.prices.num_micro_batches(0)} micro-batches.",
            remedy="Search with a larger --batch, so that the pipeline fills, or for one stage on"
            " every device.",
        )
    return found


def read_beats(tasks: Sequence[Task]) -> tuple[Beat, ...] | None:
    """The pattern of a device with several stages, read where all of them are at work."""
    if not tasks:
        return ()
    kinds = {(task.stage, task.kind) for task in tasks}
    head = (tasks[0].stage, tasks[0].kind)
    starts = [i for i, task in enumerate(tasks) if (task.stage, task.kind) == head]
    for start, stop in pairwise(starts):
        window = tasks[start:stop]
        if len(window) == len(kinds) == len({(t.stage, t.kind) for t in window}):
            first = window[0].micro_batch
            beats = tuple(Beat(t.stage, t.kind, first - t.micro_batch) for t in window)
            return beats if all(beat.lag >= 0 for beat in beats) else None
    return None
