"""Course: the lines of all devices of a plan, and where the slices of their streams end.

A slice ends where a device would need a batch that has not come, or wait for a device that does: so
nobody ever waits in slice k for what another one does in slice k + 1, and after every slice all
devices can stop, for instance to write a checkpoint. Where every device has one stage and updates
do not meet, that is the position of the batch's last micro-batch. Else all devices are walked
through, until slices repeat; every rank finds the same.
"""

from __future__ import annotations

from functools import cached_property

from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Task
from graphplan_runtime.streams.epochs import order_epochs
from graphplan_runtime.streams.lines import Line
from graphplan_runtime.streams.walks import CrossedUpdates, Join, Meet, Meeting, Move, Walk

MOST_SLICES = 1000
"""Slices after which a plan that does not repeat is a bug."""


class Course:
    """`meets` says how often stages talk about an update, not at all if they do not wait for those
    of others; with `joined` the stages of a device must also have the same version at all times
    (they hold one tied weight).
    """

    def __init__(self, plan: Plan, *, meets: int = 0, joined: bool = False) -> None:
        self.plan = plan
        self.count = plan.prices.num_micro_batches(0)
        self.meeting = Meeting.of_plan(plan, is_twofold=meets > 1) if meets else None
        self.is_even = not meets and all(len(h) <= 1 for h in plan.prices.stages_by_device)
        """Whether every device runs all forwards of a batch in the batch's own slice."""
        self._program = plan.parse_program().instructions_by_device
        self._lines: dict[int, Line] = {}
        self._epochs = order_epochs(plan) if joined else {}
        if self.is_even:
            self.lag = -(-max(plan.policy.warmups) // self.count)
            return
        try:
            self._slices = _Slices(self)
        except CrossedUpdates:
            self._lines.clear()
            self._epochs = order_epochs(plan)
            self._slices = _Slices(self)
        self.lag = self._slices.lag
        """Batches after which the loss of a batch is known everywhere without waiting for it."""

    def line_of(self, device: int) -> Line:
        """The line of a device."""
        if device not in self._lines:
            epochs = self._epochs.get(device)
            self._lines[device] = Line(self.plan, device, self._program[device], epochs=epochs)
        return self._lines[device]

    def start_walk(self, device: int, first: int) -> Walk:
        """A walk along a device's line, from an empty pipeline on."""
        return Walk(self.line_of(device), self.meeting, first)

    def count_moves(self, device: int, num_slices: int) -> int:
        """What a device does in the first slices after an empty pipeline."""
        if self.is_even:
            beats = self.line_of(device).beats
            return sum(max(0, num_slices * self.count - beat.lag) for beat in beats)
        return self._slices.count_moves(device, num_slices)

    def count_issued(self, num_slices: int) -> int:
        """Updates that all devices have issued in the first slices after an empty pipeline."""
        return 0 if self.is_even else self._slices.count_issued(num_slices)


class _Slices:
    """All devices at once; those that share a stage have equal lines, and one stands for them."""

    def __init__(self, course: Course) -> None:
        self.course = course
        hosted = enumerate(course.plan.prices.stages_by_device)
        self.devices = [d for d, own in hosted if own and d == self._find_machine(own[0])]
        self.walks = {d: course.start_walk(d, 0) for d in self.devices}
        self.walk_by_stage = {s: self.walks[d] for d in self.devices for s in self._hosted(d)}
        self.before, self.after = _list_neighbours(course.plan)
        self.moves: list[dict[int, int]] = [dict.fromkeys(self.devices, 0)]
        self.issued: list[int] = [0]
        self.lag = 0
        self._run_slices()
        self._check_end()

    @cached_property
    def per_slice(self) -> dict[int, int]:
        """Moves of a device in a slice that repeats."""
        course, found = self.course, {}
        for device, walk in self.walks.items():
            found[device] = len(walk.line.beats) * course.count
            if course.meeting is not None and walk.num_issued is not None:
                num_updates = course.count // course.plan.policy.accumulate
                found[device] += (1 + course.meeting.is_twofold) * num_updates
        return found

    def count_moves(self, device: int, num_slices: int) -> int:
        machine = self._find_machine(self._hosted(device)[0]) if self._hosted(device) else None
        if machine is None:
            return 0
        extra = max(0, num_slices - len(self.moves) + 1)
        return self.moves[num_slices - extra][machine] + extra * self.per_slice[machine]

    def count_issued(self, num_slices: int) -> int:
        extra = max(0, num_slices - len(self.issued) + 1)
        per_slice = self.course.count // self.course.plan.policy.accumulate
        return self.issued[num_slices - extra] + extra * per_slice

    def _hosted(self, device: int) -> tuple[int, ...]:
        return tuple(self.course.plan.prices.stages_by_device[device])

    def _find_machine(self, stage: int) -> int:
        return self.course.plan.prices.stages[stage].devices[0]

    # -- walking ---------------------------------------------------------------------------------

    def _run_slices(self) -> None:
        """Slice after slice, until one is as the one before."""
        last: dict[object, int] = {}
        for num_fed in range(1, MOST_SLICES):
            self._go(num_fed, drains=False)
            self.moves.append({d: walk.num_moves for d, walk in self.walks.items()})
            self.issued.append(self._count_issued())
            now = self._count_done()
            self.lag = max(self.lag, num_fed - min(now.values()) // self.course.count)
            is_full = self.moves[-1] == {
                d: num + self.per_slice[d] for d, num in self.moves[-2].items()
            }
            if is_full and all(now[key] == last.get(key, 0) + self.course.count for key in now):
                return
            last = now
        raise AssertionError("slices of a stream never repeat")

    def _count_done(self) -> dict[object, int]:
        """Micro-batches by stage and kind."""
        return {key: num for walk in self.walks.values() for key, num in walk.done.items()}

    def _go(self, num_fed: int, *, drains: bool) -> None:
        """Let every device go as far as it can."""
        has_moved = True
        while has_moved:
            has_moved = False
            for walk in self.walks.values():
                while (move := walk.peek(num_fed, drains=drains)) and self._is_free(move):
                    walk.take(move)
                    has_moved = True

    def _is_free(self, move: Move) -> bool:
        """Whether all has run that a move waits for."""
        if isinstance(move, Join) and self.course.meeting and self.course.meeting.is_twofold:
            walks = (walk for walk in self.walks.values() if walk.num_issued is not None)
            return min(walk.num_met for walk in walks) > move.update
        if isinstance(move, (Join, Meet)):
            return self._count_issued() > move.update
        task = move.instruction
        assert isinstance(task, Task)
        i = move.batch * self.course.count + task.micro_batch
        others = self.before if task.kind == "F" else self.after if task.kind != "W" else {}
        kinds = ("F",) if task.kind == "F" else ("B", "I")
        return all(
            max(self.walk_by_stage[s].done[s, kind] for kind in kinds) > i
            for s in others.get(task.stage, ())
        )

    def _count_issued(self) -> int:
        issued = (walk.num_issued for walk in self.walks.values())
        return min((each for each in issued if each is not None), default=0)

    def _check_end(self) -> None:
        """With no more batches everything comes to its end."""
        num_fed = len(self.moves) - 1
        self._go(num_fed, drains=True)
        ends = (walk.peek(num_fed, drains=True) for walk in self.walks.values())
        if any(end is not None for end in ends):
            raise CrossedUpdates


def _list_neighbours(plan: Plan) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """By stage: those whose outputs it reads, those that send it gradients."""
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for a, b in plan.prices.edges:
        before.setdefault(b, []).append(a)
    for a, b in plan.prices.backward_edges:
        after.setdefault(a, []).append(b)
    return before, after
