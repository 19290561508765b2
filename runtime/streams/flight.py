"""Flight: batches that follow one another through this device without a drain between them.

The stream says in which order (stream.py); every batch has its own actions, resolved for its shape,
and its own state. Losses are heard as many batches later as the pipeline is deep.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence

from graphplan.nouns.task import Instruction
from graphplan_runtime.faults.status import POSITION, WAITING, Status
from graphplan_runtime.messages.losses import BatchLoss, LossExchange
from graphplan_runtime.stages.executor import Action, Actions, StepState, finish_sends
from graphplan_runtime.streams.lines import Step
from graphplan_runtime.streams.stream import Stream
from graphplan_runtime.streams.walks import Join, Move
from graphplan_runtime.updates.update import Updater
from graphplan_runtime.updates.weights import WeightVersions

Shapes = dict[str, tuple[int, ...]]
"""Sizes of a batch's inputs."""


@dataclasses.dataclass
class Aloft:
    """One batch in flight."""

    state: StepState
    actions: Mapping[Instruction, tuple[int, Action]]
    """With the position in the device's list."""


class Flight:
    """Runs slices of the stream on this device."""

    def __init__(
        self,
        stream: Stream,
        line: Sequence[Instruction],
        *,
        versions: Mapping[int, WeightVersions],
        losses: LossExchange,
        updater: Updater,
        status: Status,
    ) -> None:
        self.stream = stream
        self.updater = updater
        self.line = line
        self.versions = versions
        self.exchange = losses
        self.status = status
        self.batches: dict[int, Aloft] = {}
        self.landed: list[StepState] = []
        """Batches that ended in the last slice."""
        self.told: deque[float] = deque()
        """Losses that are known and have not been given to the caller."""
        self._losses: dict[int, tuple[BatchLoss, StepState]] = {}
        self._num_told = 0
        self._shapes: dict[int, Shapes] = {}

    @property
    def shapes(self) -> tuple[Shapes, ...]:
        """Sizes of the inputs of the batches of which some rank may have tasks left."""
        fed, first = self.stream.num_fed, self.stream.first
        return tuple(self._shapes[batch] for batch in range(max(first, fed - self.stream.lag), fed))

    def feed(self, state: StepState, actions: Actions, shapes: Shapes) -> float:
        """Run the slice of a new batch; the loss of an earlier one, not a number if none is known.

        `state.first` is the number of the batch's first micro-batch in the whole run.
        """
        batch = self.stream.num_fed
        self.adopt(batch, state, actions, shapes)
        self.open_loss(batch)
        self._run(self.stream.feed())
        if self.stream.is_even:
            self._tell(batch)
        else:
            self._tell(batch - self.stream.lag)
        self._land(self.stream.num_fed - self.stream.count_left())
        self._hear(batch - self.stream.lag)
        return self.told.popleft() if self.told else math.nan

    def adopt(self, batch: int, state: StepState, actions: Actions, shapes: Shapes) -> None:
        """Take a batch in, a new one or one that a checkpoint had in flight."""
        table = {self.line[position]: (position, action) for position, action in actions}
        self.batches[batch] = Aloft(state, table)
        self._shapes[batch] = shapes
        self._shapes.pop(batch - self.stream.lag - 1, None)

    def open_loss(self, batch: int) -> None:
        """Be ready to hear the loss of a batch, which is not known before it has been fed."""
        self._losses[batch] = (self.exchange.open(), self.batches[batch].state)

    def list_unheard(self) -> list[tuple[int, StepState]]:
        """Batches whose loss nobody knows yet, with what this rank has computed of them."""
        return [(batch, state) for batch, (_, state) in self._losses.items()]

    def drain(self) -> list[float]:
        """Run what is left; the losses that the caller has not been given."""
        self._run(self.stream.drain())
        self._land(self.stream.num_fed)
        self.settle()
        for versions in self.versions.values():
            versions.restart(self.stream.num_fed * self.stream.count)
        found = list(self.told)
        self.told.clear()
        return found

    def settle(self) -> None:
        """Wait for the losses of all batches that have been fed; they must have been computed."""
        for batch in sorted(self._losses):
            self._tell(batch)
        for batch in sorted(self._losses):
            self._hear(batch)

    def run_receives(self) -> None:
        """Post receives out of turn, for a checkpoint."""
        self._run(self.stream.list_unreceived())

    # -- parts -----------------------------------------------------------------------------------

    def _run(self, moves: Sequence[Move]) -> None:
        numbers, batches = self.status.numbers, self.batches
        for move in moves:
            if not isinstance(move, Step):
                numbers[WAITING] = 1
                run = self.updater.join if isinstance(move, Join) else self.updater.meet
                run(move.update)
                numbers[WAITING] = 0
                continue
            batch, instruction = move
            aloft = batches[batch]
            found = aloft.actions.get(instruction)
            if found is not None:
                numbers[POSITION] = found[0]
                found[1](aloft.state)

    def _land(self, stop: int) -> None:
        """Forget the batches before `stop`, of which nothing is left."""
        self.landed = [self.batches.pop(b).state for b in sorted(self.batches) if b < stop]
        for state in self.landed:
            finish_sends(state, self.status)

    def _tell(self, batch: int) -> None:
        while self._num_told <= batch:
            if self._num_told in self._losses:
                loss, state = self._losses[self._num_told]
                loss.tell(state.sum_losses())
            self._num_told += 1

    def _hear(self, batch: int) -> None:
        if batch in self._losses:
            self.status.numbers[WAITING] = 1
            self.told.append(self._losses.pop(batch)[0].hear())
            self.status.numbers[WAITING] = 0
