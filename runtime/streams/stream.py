"""Stream: the program of one batch, repeated without an end and without a drain between batches.

    slice k   everything from the first forward of batch k up to that of batch k + 1; the backwards
              of its last w_s micro-batches come in later slices
    drain     what is left when no batch follows

    a stage with w = 2 and four micro-batches a batch (1:F0 is batch 1's):

    slice 0   0:F0 0:F1 0:F2 0:B0 0:F3 0:B1
    slice 1   1:F0 0:B2 1:F1 0:B3 1:F2 1:B0 1:F3 1:B1
    drain     1:B2 1:B3

A task's receives are posted one task ahead of it; its sends, reductions and updates follow it.
Between two devices, messages are posted at both ends in the order in which the sender makes them:
the receiver walks along the sender's stream up to the message that it needs.

Why this cannot deadlock: a task needs only messages of slices that have begun everywhere
(course.py); all receives up to them are posted without waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Task, Transfer
from graphplan_runtime.streams.course import Course
from graphplan_runtime.streams.lines import Step
from graphplan_runtime.streams.walks import Move, Walk


class Stream:
    """The stream of one device of a plan; see Course for `meets` and `joined`."""

    def __init__(self, plan: Plan, device: int, *, meets: int = 0, joined: bool = False) -> None:
        self.plan = plan
        self.device = device
        self.course = Course(plan, meets=meets, joined=joined)
        self.line = self.course.line_of(device)
        self.count = self.line.count
        self.lag = self.course.lag
        """Batches after which the loss of a batch is known everywhere without waiting for it."""
        self.is_even = self.course.is_even
        received = itertools.chain.from_iterable(self.line.receives.values())
        self._sources = sorted({self._source_of(each) for each in received})
        self.resume(0, 0)

    def feed(self) -> list[Move]:
        """The next slice."""
        self.num_fed += 1
        stop = self.course.count_moves(self.device, self.num_fed - self.first)
        return self._lay(self._take(stop))

    def drain(self) -> list[Move]:
        """What is left; the next slice begins from empty."""
        moves = self._lay(self._take(None))
        self.resume(self.num_fed, self.num_fed)
        return moves

    def count_left(self) -> int:
        """Batches of which tasks of this device are left, as many as the last ones."""
        done = min(self._own.done.values(), default=self.num_fed * self.count)
        return self.num_fed - done // self.count

    @property
    def num_issued(self) -> int:
        """Updates that the stages of all devices have issued in the slices so far."""
        origin = self.first * self.count // self.line.accumulate
        return origin + self.course.count_issued(self.num_fed - self.first)

    def list_unreceived(self) -> list[Step]:
        """Receives of what other devices have sent in the slices so far and nobody has posted."""
        return [
            step
            for source in self._sources
            for step in self._advance(source, self._replay(source)[1])
        ]

    def resume(self, first: int, num_fed: int) -> None:
        """Go on in mid-stream; all that was sent so far has been received."""
        self.first, self.num_fed = first, num_fed
        """The batch with which the stream last began empty, and those that have come."""
        self._own = self._replay(self.device)[0]
        self._num_walked: dict[int, int] = {}
        self._messages: dict[int, Iterator[Step]] = {}
        self._posted: set[Step] = set()
        """Receives that are posted and whose task has not been laid yet."""
        for source in self._sources:
            walk, self._num_walked[source] = self._replay(source)
            self._messages[source] = self._list_messages(source)
            for _ in range(self._num_walked[source]):
                next(self._messages[source])
            self._posted.update(self._list_waiting(source, walk))

    # -- slices ----------------------------------------------------------------------------------

    def _take(self, stop: int | None) -> Iterator[Move]:
        """Moves of this device up to a number of them, or to the end of a drain."""
        drains = stop is None
        while stop is None or self._own.num_moves < stop:
            move = self._own.peek(self.num_fed, drains=drains)
            if move is None:
                assert drains, "a slice has all the batches that it needs"
                return
            self._own.take(move)
            yield move

    def _lay(self, moves: Iterator[Move]) -> list[Move]:
        """Tasks with their receives one task ahead, and what follows them."""
        laid: list[Move] = []
        ahead: list[Move] = []
        for move in moves:
            if not isinstance(move, Step):
                ahead.append(move)
                continue
            batch, task = move
            assert isinstance(task, Task)
            laid += [*self._list_receives(batch, task), *ahead]
            followers = (*self.line.sends.get(task, ()), *self.line.closings.get(task, ()))
            ahead = [move, *(Step(batch, each) for each in followers)]
        return [*laid, *ahead]

    def _list_receives(self, batch: int, task: Task) -> Iterator[Step]:
        """The receives of a task, and all that their senders send before."""
        for transfer in self.line.receives.get(task, ()):
            wanted, source = Step(batch, transfer), self._source_of(transfer)
            while wanted not in self._posted:
                yield from self._advance(source, self._num_walked[source] + 1)
            self._posted.remove(wanted)

    # -- senders ---------------------------------------------------------------------------------

    def _source_of(self, transfer: Transfer) -> int:
        """One of the devices that send a transfer; replicas have equal lines."""
        return self.plan.prices.stages[transfer.src].devices[0]

    def _list_messages(self, source: int) -> Iterator[Step]:
        """All messages of a device to this one, in the order in which it makes them."""
        line = self.course.line_of(source)
        for step in line.walk(self.first):
            yield from line.list_messages(step, self.line.hosted)

    def _advance(self, source: int, num_walked: int) -> Sequence[Step]:
        """Post receives until so many of a sender's messages have been posted."""
        done = self._num_walked[source]
        walked = itertools.islice(self._messages[source], max(0, num_walked - done))
        # In a drain the sender leaves out what batches that do not come would bring.
        steps = [step for step in walked if step.batch < self.num_fed]
        self._num_walked[source] = max(done, num_walked)
        self._posted.update(steps)
        return steps

    def _replay(self, device: int) -> tuple[Walk, int]:
        """Where a device is after the slices so far, and how many messages it sent to this one."""
        walk, num_sent = self.course.start_walk(device, self.first), 0
        stop = self.course.count_moves(device, self.num_fed - self.first)
        while walk.num_moves < stop:
            move = walk.peek(self.num_fed)
            assert move is not None, "a slice has all the batches that it needs"
            walk.take(move)
            if isinstance(move, Step):
                num_sent += len(walk.line.list_messages(move, self.line.hosted))
        return walk, num_sent

    def _list_waiting(self, source: int, walk: Walk) -> Iterator[Step]:
        """Messages of a device that have been sent and whose task is not laid yet."""
        for task, transfers in self.line.receives.items():
            for batch in range(max(self.first, self.num_fed - self.lag - 1), self.num_fed):
                if batch * self.count + task.micro_batch < self._own.done[task.stage, task.kind]:
                    continue
                for each in transfers:
                    kinds = ("F",) if each.kind == "F" else ("B", "I")
                    done = max(walk.done[each.src, kind] for kind in kinds)
                    is_sent = batch * self.count + each.micro_batch < done
                    if is_sent and self._source_of(each) == source:
                        yield Step(batch, each)
