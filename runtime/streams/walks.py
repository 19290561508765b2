"""Walk: a device on its way along its line, with the points where updates of all stages meet.

Where an update of one stage waits for those of others (tied weights, clipping, loss scaling), a
stage *issues* the update when its last backward has run, and all stages of a device apply it
together at a *join*: as late as possible, in front of the first task that must see it.

    naive, stash, ...   F of micro-batch i must see update (i - w) // m - 1, B update i // m - 1
    2bw                 F of micro-batch i must see update i // m - 2, B uses what F used

So under 2bw almost m micro-batches lie between issue and join, and nobody waits. All others have no
task in between: a pipeline whose updates meet drains for each of them.

With tied weights and a norm both, stages talk twice: the norm needs the sums of the tied gradients.
In between a device *meets* the others; under 2bw when all of them should have issued.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import NamedTuple

from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.task import Task
from graphplan_runtime.streams.lines import Line, Step


class Join(NamedTuple):
    """All stages of a device apply an update."""

    update: int


class Meet(NamedTuple):
    """A device has the sums of an update's tied gradients, and tells its part of the norm."""

    update: int


Move = Step | Join | Meet


class CrossedUpdates(Exception):
    """In a line's order a stage must apply an update before another one has issued it."""


@dataclasses.dataclass(frozen=True)
class Meeting:
    """When updates that meet must be applied."""

    policy: WeightPolicy
    updating: frozenset[int]
    """Stages that have a backward, and so updates."""
    is_twofold: bool
    """Whether stages talk twice: the norm needs sums of tied gradients."""

    @classmethod
    def of_plan(cls, plan: Plan, *, is_twofold: bool) -> Meeting:
        """The rules of a plan."""
        stages = enumerate(plan.prices.stages)
        updating = frozenset(s for s, each in stages if each.needs_backward)
        return cls(plan.policy, updating, is_twofold)

    def is_due(self, update: int, step: Step | None, count: int) -> bool:
        """Whether a device that has issued an update should meet the others before a task."""
        if not self.policy.is_deferred or step is None:
            return True
        m, most = self.policy.accumulate, max(self.policy.warmups)
        task = step.instruction
        assert isinstance(task, Task)
        micro_batch = step.batch * count + task.micro_batch
        return task.kind == "F" and micro_batch >= (update + 1) * m + most

    def count_needed(self, task: Task, micro_batch: int, origin: int) -> int | None:
        """Updates that a task must see; None when any number will do."""
        policy, m = self.policy, self.policy.accumulate
        if task.stage not in self.updating or (policy.is_deferred and task.kind != "F"):
            return None
        if policy.is_deferred:
            return max(micro_batch // m - 1, origin // m)
        warmup = policy.warmups[task.stage] if task.kind == "F" else 0
        return max(micro_batch - warmup, origin) // m


class Walk:
    """Where a device is on its line."""

    def __init__(self, line: Line, meeting: Meeting | None, first: int) -> None:
        self.line = line
        self.meeting = meeting
        self.origin = first * line.count
        self.done: Counter[tuple[int, str]] = Counter()
        """Micro-batches by stage and kind, those before `first` included."""
        self.num_moves = 0
        self._steps = line.walk(first)
        self._ahead = next(self._steps, None) if line.beats else None
        kinds = {beat.stage: beat.kind for beat in line.beats if beat.kind in ("B", "W")}
        self._closing = [] if meeting is None else list(kinds.items())
        """The kind of each updating stage that completes its gradients."""
        self.num_joined = self.num_met = self.origin // line.accumulate
        for beat in line.beats:
            self.done[beat.stage, beat.kind] = self.origin

    @property
    def num_issued(self) -> int | None:
        """Updates that all stages of the device have issued; None if they have none."""
        counts = [self.done[key] // self.line.accumulate for key in self._closing]
        return min(counts, default=None)

    def peek(self, num_fed: int, *, drains: bool = False) -> Move | None:
        """What comes next; None when it belongs to a batch that has not come.

        In a drain, such tasks are left out.
        """
        if self.meeting is None and not drains:  # The usual case, at every task.
            return None if self._ahead is None or self._ahead.batch >= num_fed else self._ahead
        while drains and self._ahead is not None and self._is_unfed(num_fed):
            end = num_fed * self.line.count
            if all(count >= end for count in self.done.values()):
                break
            self._ahead = next(self._steps)
        is_out = self._ahead is None or self._is_unfed(num_fed)
        if self._should_meet(None if drains and is_out else self._ahead):
            return Meet(self.num_met)
        if self._ahead is None or is_out:
            issued = self.num_issued or 0
            return self._approach() if drains and issued > self.num_joined else None
        needed = self._count_needed(self._ahead)
        if needed is not None and needed != self.num_joined:
            self._check_order(needed)
            return self._approach() if needed > self.num_joined else self._ahead
        return self._ahead

    def _should_meet(self, step: Step | None) -> bool:
        return (
            self.meeting is not None
            and self.meeting.is_twofold
            and (self.num_issued or 0) > self.num_met
            and self.meeting.is_due(self.num_met, step, self.line.count)
        )

    def _approach(self) -> Move:
        """The next join, or what must come before it."""
        assert self.meeting is not None
        if self.meeting.is_twofold and self.num_met == self.num_joined:
            return Meet(self.num_met)
        return Join(self.num_joined)

    def take(self, move: Move) -> None:
        """Go on behind what `peek` gave."""
        self.num_moves += 1
        if isinstance(move, Step):
            task = move.instruction
            assert isinstance(task, Task)
            self.done[task.stage, task.kind] += 1
            self._ahead = next(self._steps)
        elif isinstance(move, Join):
            self.num_joined += 1
        else:
            self.num_met += 1

    def _is_unfed(self, num_fed: int) -> bool:
        return self._ahead is not None and self._ahead.batch >= num_fed

    def _count_needed(self, step: Step) -> int | None:
        task = step.instruction
        if self.meeting is None or not isinstance(task, Task):
            return None
        micro_batch = step.batch * self.line.count + task.micro_batch
        return self.meeting.count_needed(task, micro_batch, self.origin)

    def _check_order(self, needed: int) -> None:
        """All stages of the device have issued what one of them needs, and none is too late."""
        assert self.meeting is not None
        is_late = needed < self.num_joined and not self.meeting.policy.is_deferred
        if is_late or needed > (self.num_issued or 0):
            raise CrossedUpdates
