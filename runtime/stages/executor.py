"""The executor: interprets the program of one device, instruction by instruction.

    0>1F2   receive: post it, into the mailbox of the task that will need it
    1F2     task: wait for its mailbox, run it, keep what it made for the sends that follow
    1>2F2   send: post it
    1R7     reduce the gradients of the stage over its replicas
    1U7     apply the update of the stage

It decides nothing: order, peers, rows and buffers are resolved before a step runs (resolve.py),
once for every number of rows that a batch has.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch

from graphplan_runtime.faults.failures import LostPeer
from graphplan_runtime.faults.status import POSITION, WAITING, Status
from graphplan_runtime.messages.letters import Letters
from graphplan_runtime.messages.queues import MarkedNote, Work
from graphplan_runtime.updates.scaling import LossScale

Made = Sequence[torch.Tensor | None]
"""Outputs of a forward, or gradients of the inputs of a backward."""


@dataclasses.dataclass(slots=True)
class StepState:
    """What one step changes; mailboxes and lanes are numbered when the program is resolved."""

    step: int
    seed: int
    inputs: Mapping[str, torch.Tensor]
    """The rows of the whole batch of every model input that this device reads."""
    loss_scale: LossScale = dataclasses.field(default_factory=LossScale)
    first: int = 0
    """Number of its first micro-batch in the whole run; 0 where every batch ends by itself."""
    losses: list[tuple[torch.Tensor, float]] = dataclasses.field(default_factory=list)
    """Losses of this device's parts of the batch, with their shares of all samples."""
    letters: dict[int, Letters] = dataclasses.field(default_factory=dict)
    """By mailbox: what has come, or is on its way."""
    made: dict[int, Made] = dataclasses.field(default_factory=dict)
    """By mailbox: what tasks made, until its last send is posted."""
    sends: dict[int, deque[tuple[int, Work]]] = dataclasses.field(default_factory=dict)
    """By lane: sends under way, with the peer."""
    parts: dict[tuple[str, int], Sequence[torch.Tensor]] = dataclasses.field(default_factory=dict)
    """Model inputs split by the pieces of a stage."""
    notes: list[MarkedNote] = dataclasses.field(default_factory=list)

    def sum_losses(self) -> float:
        """This device's contribution to the loss of the batch."""
        if not self.losses:
            return 0.0
        values = torch.stack([loss for loss, _ in self.losses]).tolist()
        return sum(
            float(value) * share for value, (_, share) in zip(values, self.losses, strict=True)
        )


Action = Callable[[StepState], None]
Actions = Sequence[tuple[int, Action]]
"""With the position of the instruction in the device's list."""


def run_actions(actions: Actions, state: StepState, status: Status) -> None:
    """One step: all actions, then whatever is still being sent."""
    numbers = status.numbers
    for position, action in actions:
        numbers[POSITION] = position
        action(state)
    finish_sends(state, status)


def finish_sends(state: StepState, status: Status) -> None:
    """Wait until everything is sent."""
    status.numbers[WAITING] = 1
    for works in state.sends.values():
        for peer, work in works:
            finish_send(peer, work)
    status.numbers[WAITING] = 0


def finish_send(peer: int, work: Work) -> None:
    """Wait until a send is done."""
    try:
        work.wait()
    except RuntimeError as error:
        raise LostPeer(
            f"a message to rank {peer} cannot be sent: {str(error).splitlines()[0]}",
            remedy=f"Look for the cause at rank {peer}.",
        ) from error
