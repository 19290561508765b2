"""Emulation of a stream: batches follow one another, as under the asynchronous weight policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from graphplan.nouns.plan import Plan
from graphplan_runtime.emulate import Arrival, Emulator
from graphplan_runtime.faults.status import POSITION, Phase, Status
from graphplan_runtime.messages.deliveries import Mailbox
from graphplan_runtime.stages.executor import StepState
from graphplan_runtime.streams.lines import Step
from graphplan_runtime.streams.stream import Stream
from graphplan_runtime.streams.walks import Move


class StreamEmulator(Emulator):
    """A step is a slice of the stream; `drain` runs what is left."""

    def __init__(self, plan: Plan, *, status: Status, max_bytes: int, num_rounds: int = 50) -> None:
        super().__init__(plan, status=status, max_bytes=max_bytes, num_rounds=num_rounds)
        self.stream = Stream(plan, self.rank)
        line = plan.parse_program().instructions_by_device[self.rank]
        self._table = {line[position]: (position, action) for position, action in self._actions}
        self._states: dict[int, StepState] = {}
        self._num_sends: deque[int] = deque()
        """Sends under way by slice."""
        self._arrivals_by_batch: dict[int, dict[Mailbox, list[Arrival]]] = {}

    def step(self) -> None:
        """Feed one batch; ranks meet only before the first."""
        if self.num_steps == 0:
            self.transport.meet()
        self.status.enter(Phase.TRAINING, step=self.num_steps)
        self._states[self.num_steps] = StepState(step=self.num_steps, seed=0, inputs={})
        self._run_slice(self.stream.feed())
        self._land(self.stream.num_fed - self.stream.count_left())
        self._drop_sends()
        self.num_steps += 1

    def drain(self) -> None:
        """Let everything in flight end."""
        self._run_slice(self.stream.drain())
        self._land(self.num_steps)
        self._finish_sends()

    def _run_slice(self, moves: Sequence[Move]) -> None:
        for move in moves:
            assert isinstance(move, Step), "emulated updates do not meet"
            batch, instruction = move
            found = self._table.get(instruction)
            if found is not None:
                self.status.numbers[POSITION] = found[0]
                self._arrivals = self._arrivals_by_batch.setdefault(batch, {})
                found[1](self._states[batch])

    def _drop_sends(self) -> None:
        """Forget sends that the pipeline's depth says have arrived long ago."""
        self._num_sends.append(len(self._sends) - sum(self._num_sends))
        if len(self._num_sends) > self.stream.lag + 2:
            for work in self._sends[: self._num_sends.popleft()]:
                work.wait()
            del self._sends[: len(self._sends) - sum(self._num_sends)]

    def _land(self, stop: int) -> None:
        ended = [batch for batch in sorted(self._states) if batch < stop]
        self.ended = {batch: self._states.pop(batch).notes for batch in ended}
        for batch in ended:
            self._arrivals_by_batch.pop(batch, None)
