"""Resolving: every instruction of a device becomes an action, with all that can be known ahead.

An action is a closure over numbers, tensors' sizes and methods; what it does in a step is little
more than the calls of torch. Tiny stages spend their time between these calls.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan_runtime.faults.status import WAITING, Status
from graphplan_runtime.messages.deliveries import Delivery, Mailbox, Routes, Slot
from graphplan_runtime.messages.letters import Letters, add_letters
from graphplan_runtime.messages.plain import make_plain
from graphplan_runtime.messages.rows import BatchAxis
from graphplan_runtime.messages.transport import Transport
from graphplan_runtime.stages.executor import Action, Actions, Made, StepState, finish_send
from graphplan_runtime.stages.feeding import cut_input
from graphplan_runtime.stages.finite import Check, make_check
from graphplan_runtime.stages.randomness import derive_seed
from graphplan_runtime.stages.stage import StageRunner
from graphplan_runtime.updates.reducers import Reducer
from graphplan_runtime.updates.shares import list_last, share_update

SENDS_KEPT = 8
"""Sends of one kind to one stage that may be under way before the next one waits for the first."""

Gather = Callable[[StepState], list[torch.Tensor]]
GatherGradients = Callable[[StepState], list[torch.Tensor | None]]
HandOver = Callable[[StepState, Made], None]


class Closing(Protocol):
    """What happens to the gradients of a stage."""

    @property
    def reducers(self) -> Mapping[int, Reducer]:
        """What wants to know of them while they arise, by stage."""

    def reduce(self, stage: int) -> None: ...

    def update(self, stage: int) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """What the actions of one device work with."""

    runners: Mapping[int, StageRunner]
    transport: Transport
    closing: Closing
    status: Status
    check_finite: bool = False
    policy: WeightPolicy = dataclasses.field(default_factory=WeightPolicy)
    sends_kept: int = SENDS_KEPT


def resolve_program(
    rank: Rank,
    routes: Routes,
    *,
    dtypes: Mapping[str, torch.dtype],
    axes: Mapping[str, BatchAxis | None],
) -> Actions:
    """The actions of a device for one split of the batch.

    `dtypes` are those of the values on the wire, `axes` the batch dimensions of the model inputs.
    """
    resolver = _Resolver(rank, routes, dtypes, axes)
    found = ((position, resolver.resolve(each)) for position, each in enumerate(resolver.line))
    return tuple((position, action) for position, action in found if action is not None)


class _Resolver:
    def __init__(
        self,
        rank: Rank,
        routes: Routes,
        dtypes: Mapping[str, torch.dtype],
        axes: Mapping[str, BatchAxis | None],
    ) -> None:
        self.rank = rank
        self.routes = routes
        self.dtypes = dtypes
        self.axes = axes
        self.numbers: dict[object, int] = {}
        """Of mailboxes and lanes."""
        self.line = line = routes.program.instructions_by_device[routes.device]
        self.last_contributions = set(list_last(line, rank.policy))
        """Tasks with which the gradients of an update are complete."""
        self.last_send = {
            _made_by(each): each
            for each in line
            if isinstance(each, Transfer) and routes.sends(each)
        }

    def resolve(self, instruction: Instruction) -> Action | None:
        """None when there is nothing to do, for instance for lack of rows."""
        if isinstance(instruction, Transfer):
            return self._resolve_transfer(instruction)
        if instruction.kind in ("R", "U"):
            return self._close(instruction)
        if not self._rows(instruction):
            runner = self.rank.runners[instruction.stage]
            return self._contribute(instruction, runner.standing_by(instruction.kind))
        if instruction.kind == "F":
            return self._forward(instruction)
        run = self._weights if instruction.kind == "W" else self._backward
        return self._contribute(instruction, run(instruction))

    def _contribute(self, task: Task, run: Action | None) -> Action | None:
        """A task that may add to gradients which are reduced while they arise, rows or no rows."""
        reducer = self.rank.closing.reducers.get(task.stage)
        if reducer is None or task.kind not in ("B", "W"):
            return run
        is_last = task in self.last_contributions
        if run is None and not reducer.contributes(is_last=is_last):
            return None

        def contribute(state: StepState) -> None:
            reducer.begin(is_last=is_last)
            if run is not None:
                run(state)
            reducer.end()

        return contribute

    def _number(self, thing: object) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))

    def _replica(self, stage: int) -> int:
        return self.routes.split.stages.stages[stage].devices.index(self.routes.device)

    def _rows(self, task: Task) -> range:
        """The samples of a task on this device."""
        replica = self._replica(task.stage)
        return self.routes.split.piece(task.stage, task.micro_batch, replica).rows

    # -- mailboxes -------------------------------------------------------------------------------

    def _slots(self, mailbox: Mailbox) -> Sequence[Slot]:
        """What arrives in a mailbox, in order."""
        if mailbox.kind == "B":
            return self.routes.gradient_slots.get(mailbox, ())
        given = self.rank.runners[mailbox.stage].module.inputs
        return [Slot(each.name, mailbox.stage) for each in given if each.source is not None]

    def _posts(self, deliveries: Sequence[Delivery]) -> list[tuple[int, int, int, Delivery]]:
        """Each delivery with its mailbox, the number of slots there, and its own slot."""
        found = []
        for each in deliveries:
            slots = self._slots(each.mailbox)
            place = slots.index(each.slot)
            found.append((self._number(each.mailbox), len(slots), place, each))
        return found

    # -- transfers -------------------------------------------------------------------------------

    def _resolve_transfer(self, transfer: Transfer) -> Action | None:
        stages = self.routes.split.stages.stages
        if self.routes.device in stages[transfer.dst].devices:
            return self._receive(self.routes.receives(transfer))
        return self._send(transfer, self.routes.sends(transfer))

    def _receive(self, deliveries: Sequence[Delivery]) -> Action | None:
        transport, dtypes = self.rank.transport, self.dtypes
        posts = [(*post, dtypes[post[-1].value]) for post in self._posts(deliveries)]

        def receive(state: StepState) -> None:
            for box, num_slots, slot, delivery, dtype in posts:
                letters = state.letters.get(box)
                if letters is None:
                    letters = state.letters[box] = Letters(num_slots)
                letters.receive(slot, delivery, transport, dtype)

        return receive if posts else None

    def _send(self, transfer: Transfer, deliveries: Sequence[Delivery]) -> Action | None:
        transport, takes = self.rank.transport, self._takes(transfer.src, transfer.kind, deliveries)
        source = _made_by(transfer)
        is_last = self.last_send.get(source) == transfer
        box, lane = self._number(source), self._number((transfer.src, transfer.dst, transfer.kind))
        most = self.rank.sends_kept

        def send(state: StepState) -> None:
            made = state.made.pop(box) if is_last else state.made[box]
            works = state.sends.get(lane)
            if works is None:
                works = state.sends[lane] = deque()
            for take, delivery in takes:
                tensor, peer = make_plain(take(made)), delivery.peer
                works.append((peer, transport.send(tensor, peer, delivery.tag)))
            while len(works) > most:
                finish_send(*works.popleft())

        return send if deliveries else None

    def _hand_over(self, task: Task) -> HandOver:
        """Give what a task made to the other stages of this device, and keep it for its sends."""
        kind = "F" if task.kind == "F" else "B"
        source = Mailbox(task.stage, kind, task.micro_batch)  # type: ignore[arg-type]
        box, is_sent = self._number(source), source in self.last_send
        transport = self.rank.transport
        deliveries = self.routes.handovers(task)
        takes = self._takes(task.stage, kind, deliveries)
        posts = [
            (*post, take) for post, (take, _) in zip(self._posts(deliveries), takes, strict=True)
        ]

        def hand_over(state: StepState, made: Made) -> None:
            if is_sent:
                state.made[box] = made
            for other, num_slots, slot, delivery, take in posts:
                letters = state.letters.get(other)
                if letters is None:
                    letters = state.letters[other] = Letters(num_slots)
                letters.put(slot, delivery, transport, take(made))

        return hand_over

    def _takes(
        self, stage: int, kind: str, deliveries: Sequence[Delivery]
    ) -> list[tuple[Callable[[Made], torch.Tensor], Delivery]]:
        """For each delivery how to take what it carries from what a task made."""
        module = self.rank.runners[stage].module
        names = module.outputs if kind == "F" else [given.name for given in module.inputs]
        return [(self._take(names.index(each.value), each), each) for each in deliveries]

    def _take(self, place: int, delivery: Delivery) -> Callable[[Made], torch.Tensor]:
        window, sizes = delivery.take, delivery.sizes
        dtype, device = self.dtypes[delivery.value], self.rank.transport.device

        def take(made: Made) -> torch.Tensor:
            tensor = made[place]
            if tensor is None:  # A gradient that did not arise is zero.
                return torch.zeros(sizes, dtype=dtype, device=device)
            return tensor if window is None else tensor.narrow(*window)

        return take

    # -- tasks -----------------------------------------------------------------------------------

    def _forward(self, task: Task) -> Action:
        mark = self.rank.transport.queues.mark
        runner, m, rows = self.rank.runners[task.stage], task.micro_batch, self._rows(task)
        loss = runner.module.loss
        loss_index = runner.module.outputs.index(loss) if loss is not None else None
        share = len(rows) / self.routes.split.num_rows
        gather, hand_over, check = self._gather(task), self._hand_over(task), self._check(task)

        def forward(state: StepState) -> None:
            begin = mark()
            inputs = gather(state)
            seed = 0
            if runner.is_random:
                seed = derive_seed(state.seed, state.step, task.stage, m, rows.start)
            start = mark()
            outputs = runner.forward(state.first + m, inputs, seed=seed)
            state.notes.append((task, begin, start, mark()))
            if loss_index is not None:
                state.losses.append((outputs[loss_index], share))
            if check is not None:
                check(outputs)
            hand_over(state, outputs)

        return forward

    def _backward(self, task: Task) -> Action:
        mark = self.rank.transport.queues.mark
        runner, m = self.rank.runners[task.stage], task.micro_batch
        run = runner.backward if task.kind == "B" else runner.backward_inputs
        gather, hand_over = self._gather_gradients(task), self._hand_over(task)
        check = self._check(task)

        def backward(state: StepState) -> None:
            begin = mark()
            gradients = gather(state)
            start = mark()
            found = run(state.first + m, gradients)
            state.notes.append((task, begin, start, mark()))
            if check is not None and not state.loss_scale.dynamic:
                check(found)
            hand_over(state, found)

        return backward

    def _weights(self, task: Task) -> Action:
        mark = self.rank.transport.queues.mark
        runner, m = self.rank.runners[task.stage], task.micro_batch

        def weights(state: StepState) -> None:
            start = mark()
            runner.backward_weights(state.first + m)
            state.notes.append((task, start, start, mark()))

        return weights

    def _close(self, task: Task) -> Action:
        mark = self.rank.transport.queues.mark
        closing, numbers = self.rank.closing, self.rank.status.numbers
        run = closing.reduce if task.kind == "R" else closing.update

        def close(state: StepState) -> None:
            numbers[WAITING] = task.kind == "R"
            start = mark()
            run(task.stage)
            state.notes.append((task, start, start, mark()))
            numbers[WAITING] = 0

        return close

    # -- what tasks read -------------------------------------------------------------------------

    def _gather(self, task: Task) -> Gather:
        """Model inputs by rows, all else from the mailbox, in the order of the stage's inputs."""
        mailbox = Mailbox(task.stage, "F", task.micro_batch)
        box, waits = self._number(mailbox), bool(self._slots(mailbox))
        numbers = self.rank.status.numbers
        given = self.rank.runners[task.stage].module.inputs
        replica = self._replica(task.stage)
        fed = [
            (place, cut_input(self.routes.split, task, replica, each.name, self.axes[each.name]))
            for place, each in enumerate(given)
            if each.source is None
        ]

        def gather(state: StepState) -> list[torch.Tensor]:
            found: list[torch.Tensor] = []
            if waits:
                numbers[WAITING] = 1
                found = state.letters.pop(box).wait()  # type: ignore[assignment]
                numbers[WAITING] = 0
            for place, cut in fed:
                found.insert(place, cut(state))
            return found

        return gather

    def _gather_gradients(self, task: Task) -> GatherGradients:
        """For every output the sum of its readers' gradients; for the loss its share."""
        mailbox = Mailbox(task.stage, "B", task.micro_batch)
        slots, box = self._slots(mailbox), self._number(mailbox)
        module = self.rank.runners[task.stage].module
        by_output = [
            [place for place, slot in enumerate(slots) if slot.value == name]
            for name in module.outputs
        ]
        start_loss = self._start_loss(task)
        loss_index = module.outputs.index(module.loss) if module.loss is not None else None
        numbers, accumulate = self.rank.status.numbers, self.rank.policy.accumulate

        def gather(state: StepState) -> list[torch.Tensor | None]:
            letters: list[torch.Tensor | None] = []
            if slots:
                numbers[WAITING] = 1
                letters = state.letters.pop(box).wait()
                numbers[WAITING] = 0
            found = [add_letters(letters, places) for places in by_output]
            if loss_index is not None:
                update = (state.first + task.micro_batch) // accumulate
                found[loss_index] = start_loss(state.loss_scale.value_of(update))
            return found

        return gather

    def _start_loss(self, task: Task) -> Callable[[float], torch.Tensor]:
        """The gradient of the loss: the share of this task's samples times the loss scale."""
        loss, device = self.rank.runners[task.stage].module.loss, self.rank.transport.device
        dtype = self.dtypes[loss] if loss is not None else None
        share = share_update(self.routes.split, self.rank.policy, task, self._replica(task.stage))
        made: dict[float, torch.Tensor] = {}

        def start(scale: float) -> torch.Tensor:
            if scale not in made:
                made.clear()
                made[scale] = torch.tensor(share * scale, dtype=dtype, device=device)
            return made[scale]

        return start

    def _check(self, task: Task) -> Check | None:
        return (
            make_check(self.rank.runners[task.stage].module, task)
            if self.rank.check_finite
            else None
        )


def _made_by(transfer: Transfer) -> Mailbox:
    """The task whose results a transfer carries."""
    return Mailbox(transfer.src, transfer.kind, transfer.micro_batch)
