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

Why this cannot deadlock: warm-ups do not rise along an edge, so that a task needs only messages of
slices that have begun everywhere; all receives up to them are posted without waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Task, Transfer
from graphplan_runtime.lines import Line, Step


class Stream:
    """The stream of one device of a plan."""

    def __init__(self, plan: Plan, device: int) -> None:
        self.plan = plan
        program = plan.parse_program().instructions_by_device
        self.line = Line(plan, device, program[device])
        self.count = self.line.count
        received = itertools.chain.from_iterable(self.line.receives.values())
        self._lines = {
            source: Line(plan, source, program[source])
            for source in sorted({self._source_of(each) for each in received})
        }
        shared = [d for d, hosted in enumerate(plan.prices.stages_by_device) if len(hosted) > 1]
        lags = [max(plan.policy.warmups), *(Line(plan, d, program[d]).lag for d in shared)]
        self.lag = -(-max(lags) // self.count)
        """Batches after which the loss of a batch is known everywhere without waiting for it."""
        self.is_even = not shared
        """Whether every device runs all forwards of a batch in the batch's own slice."""
        self.first = 0
        """The batch with which the stream last began empty."""
        self.num_fed = 0
        self._walks: dict[int, Iterator[Step]] = {}
        self._num_walked: dict[int, int] = {}
        self._posted: set[Step] = set()
        """Receives that are posted and whose task has not been laid yet."""

    def feed(self) -> list[Step]:
        """The next slice."""
        self.num_fed += 1
        positions = range((self.num_fed - 1) * self.count, self.num_fed * self.count)
        return self._lay(self.line.list_tasks(positions, self._fed))

    def drain(self) -> list[Step]:
        """What is left; the next slice begins from empty."""
        end = self.num_fed * self.count
        steps = self._lay(self.line.list_tasks(range(end, end + self.line.lag), self._fed))
        self.resume(self.num_fed, self.num_fed)
        return steps

    def count_left(self) -> int:
        """Batches of which tasks of this device are left, as many as the last ones."""
        return min(self.num_fed - self.first, -(-self.line.lag // self.count))

    def list_unreceived(self) -> list[Step]:
        """Receives of what other devices have sent in the slices so far and nobody has posted."""
        return [
            step
            for source, line in self._lines.items()
            for step in self._advance(source, self._count_sent(line))
        ]

    def resume(self, first: int, num_fed: int) -> None:
        """Go on in mid-stream; all that was sent so far has been received."""
        self.first, self.num_fed = first, num_fed
        self._posted = set(self._list_waiting())
        self._walks = {source: self._walk(line) for source, line in self._lines.items()}
        self._num_walked = {source: self._count_sent(line) for source, line in self._lines.items()}
        for source, walk in self._walks.items():
            for _ in range(self._num_walked[source]):
                next(walk)

    # -- slices ----------------------------------------------------------------------------------

    @property
    def _fed(self) -> range:
        return range(self.first * self.count, self.num_fed * self.count)

    def _lay(self, tasks: Iterator[tuple[int, Task]]) -> list[Step]:
        """Tasks with their receives one task ahead, and what follows them."""
        laid: list[Step] = []
        ahead: list[Step] = []
        for batch, task in tasks:
            laid += [*self._list_receives(batch, task), *ahead]
            followers = (*self.line.sends.get(task, ()), *self.line.closings.get(task, ()))
            ahead = [Step(batch, task), *(Step(batch, each) for each in followers)]
        return [*laid, *ahead]

    def _list_receives(self, batch: int, task: Task) -> Iterator[Step]:
        """The receives of a task, and all that their senders send before."""
        for transfer in self.line.receives.get(task, ()):
            wanted, source = Step(batch, transfer), self._source_of(transfer)
            while wanted not in self._posted:
                yield from self._advance(source, self._num_walked.get(source, 0) + 1)
            self._posted.remove(wanted)

    # -- senders ---------------------------------------------------------------------------------

    def _source_of(self, transfer: Transfer) -> int:
        """One of the devices that send a transfer; replicas have equal lines."""
        return self.plan.prices.stages[transfer.src].devices[0]

    def _walk(self, line: Line) -> Iterator[Step]:
        """All messages of a device to this one, in the order in which it makes them."""
        start = self.first * self.count
        for i in itertools.count(start):
            yield from line.list_messages(
                line.list_tasks((i,), range(start, i + 1)), self.line.hosted
            )

    def _advance(self, source: int, num_walked: int) -> Sequence[Step]:
        """Post receives until so many of a sender's messages have been posted."""
        if source not in self._walks:
            self._walks[source] = self._walk(self._lines[source])
        done = self._num_walked.get(source, 0)
        walked = itertools.islice(self._walks[source], max(0, num_walked - done))
        # In a drain the sender leaves out what batches that do not come would bring.
        steps = [step for step in walked if step.batch < self.num_fed]
        self._num_walked[source] = max(done, num_walked)
        self._posted.update(steps)
        return steps

    def _list_waiting(self) -> Iterator[Step]:
        """Messages that have been sent and whose task is not laid yet."""
        lags = {(beat.stage, beat.kind): beat.lag for beat in self.line.beats}
        for task, transfers in self.line.receives.items():
            lag = lags[task.stage, task.kind]
            for batch in range(max(self.first, self.num_fed - 1 - lag // self.count), self.num_fed):
                if batch * self.count + task.micro_batch + lag >= self.num_fed * self.count:
                    for each in transfers:
                        if self._is_sent(batch, each):
                            yield Step(batch, each)

    def _is_sent(self, batch: int, transfer: Transfer) -> bool:
        line = self._lines[self._source_of(transfer)]
        kinds = {beat.kind: beat.lag for beat in line.beats if beat.stage == transfer.src}
        lag = kinds["F"] if transfer.kind == "F" else kinds.get("B", kinds.get("I", 0))
        return batch * self.count + transfer.micro_batch + lag < self.num_fed * self.count

    def _count_sent(self, line: Line) -> int:
        return len(line.list_messages(line.list_tasks(self._fed, self._fed), self.line.hosted))
