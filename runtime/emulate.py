"""Emulation: a plan's program with real processes and messages, and waits in place of compute.

Every task sleeps for its predicted time. Messages carry the planned bytes, up to a limit, and the
time at which they left; the receiver lets a message arrive no earlier than the planned link
would: it occupies the channel between the two devices for its predicted seconds and arrives one
latency later. Channels that several devices share are not emulated, each pair has its own.

Sleeping leaves the processor to the other ranks: 16 ranks run on a laptop, with tasks of some
milliseconds or more.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from time import perf_counter

import torch

from graphplan.files import encode_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.prices import Message, StagePrice
from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan_runtime.agreement import require_agreement
from graphplan_runtime.faults.board import Board
from graphplan_runtime.faults.status import Phase, Status
from graphplan_runtime.messages.deliveries import Mailbox
from graphplan_runtime.messages.queues import Note, Work
from graphplan_runtime.messages.transport import Transport
from graphplan_runtime.options import RunOptions
from graphplan_runtime.report import Reporter, RunReport, collect_reports, measure_peak
from graphplan_runtime.stages.executor import Actions, StepState, run_actions
from graphplan_runtime.updates.weights import WeightVersions

STAMP_BYTES = 8


@dataclasses.dataclass
class Arrival:
    """A message on its way to this device."""

    message: Message
    buffer: torch.Tensor
    work: Work
    posted_s: float
    arrived_s: float | None = None


class Emulator:
    """One device of a plan; has what a Pipeline has for reports."""

    def __init__(self, plan: Plan, *, status: Status, max_bytes: int, num_rounds: int = 50) -> None:
        self.plan = plan
        self.status = status
        self.max_bytes = max_bytes
        self.versions: dict[int, WeightVersions] = {}
        self.num_steps = 0
        self.ended: dict[int, list[Note]] = {}
        groups = {tuple(sorted(s.devices)) for s in plan.prices.stages if len(s.devices) > 1}
        self.transport = Transport(torch.device("cpu"), groups=groups)
        self.rank = self.transport.rank
        self.device = torch.device("cpu")
        self._overshoot_s = measure_overshoot(num_rounds)
        self._free_by_channel: dict[str, float] = {}
        self._arrivals: dict[Mailbox, list[Arrival]] = {}
        self._sends: list[Work] = []
        line = plan.parse_program().instructions_by_device[self.rank]
        resolved = ((i, self._resolve(each)) for i, each in enumerate(line))
        self._actions: Actions = tuple((i, act) for i, act in resolved if act is not None)

    def step(self) -> None:
        """Run the program once."""
        state = StepState(step=self.num_steps, seed=0, inputs={})
        self.status.enter(Phase.TRAINING, step=self.num_steps)
        with self.status.waiting():
            self.transport.meet()
        run_actions(self._actions, state, self.status)
        self._finish_sends()
        self.ended = {self.num_steps: state.notes}
        self.num_steps += 1

    def drain(self) -> None:
        """Nothing is left after a step."""

    def _finish_sends(self) -> None:
        with self.status.waiting():
            for work in self._sends:
                work.wait()
        self._sends.clear()

    # -- instructions ----------------------------------------------------------------------------

    def _resolve(self, instruction: Instruction) -> Callable[[StepState], None] | None:
        if isinstance(instruction, Transfer):
            return self._resolve_transfer(instruction)
        return self._run(instruction)

    def _resolve_transfer(self, transfer: Transfer) -> Callable[[StepState], None] | None:
        price = self.plan.prices.transfer_by_ends.get((transfer.src, transfer.dst))
        messages = list(enumerate(price.messages)) if price else []
        sent = [(i, each) for i, each in messages if each.src == self.rank]
        received = [(i, each) for i, each in messages if each.dst == self.rank]
        boxes = [Mailbox(transfer.dst, transfer.kind, m) for m in self._covering(transfer)]

        def post(state: StepState) -> None:
            for number, message in received:
                self._receive(message, self._tag(transfer, number), boxes)
            for number, message in sent:
                self._send(message, self._tag(transfer, number))

        return post if sent or received else None

    def _covering(self, transfer: Transfer) -> Iterable[int]:
        prices = self.plan.prices
        ours = prices.num_micro_batches(transfer.src)
        theirs = prices.num_micro_batches(transfer.dst)
        m = transfer.micro_batch
        return range(m * theirs // ours, -(-(m + 1) * theirs // ours))

    def _tag(self, transfer: Transfer, number: int) -> int:
        num_stages = len(self.plan.prices.stages)
        ends = (transfer.micro_batch * num_stages + transfer.src) * num_stages + transfer.dst
        return (ends * 64 + number) % (1 << 31)

    def _run(self, task: Task) -> Callable[[StepState], None]:
        price = self.plan.prices.stages[task.stage]
        seconds = seconds_of(price, task.kind)
        group = tuple(sorted(price.devices))
        box = Mailbox(task.stage, "F" if task.kind == "F" else "B", task.micro_batch)
        meets = task.kind == "R" and len(group) > 1
        waits = task.kind in ("F", "B", "I")

        def run(state: StepState) -> None:
            begin = perf_counter()
            if waits:
                with self.status.waiting():
                    self._wait(self._arrivals.pop(box, []))
            if meets:
                self.transport.sum_over(group, torch.zeros(1)).wait()
            start = perf_counter()
            self._sleep_until(start + seconds)
            state.notes.append((task, begin, start, perf_counter()))

        return run

    # -- messages --------------------------------------------------------------------------------

    def _num_bytes(self, message: Message) -> int:
        return STAMP_BYTES + min(message.bytes, self.max_bytes) // 8 * 8

    def _send(self, message: Message, tag: int) -> None:
        buffer = torch.empty(self._num_bytes(message), dtype=torch.uint8)
        buffer[:STAMP_BYTES].view(torch.float64)[0] = perf_counter()
        self._sends.append(self.transport.send(buffer, message.dst, tag))

    def _receive(self, message: Message, tag: int, boxes: list[Mailbox]) -> None:
        buffer = torch.empty(self._num_bytes(message), dtype=torch.uint8)
        work = self.transport.receive(buffer, message.src, tag)
        arrival = Arrival(message, buffer, work, perf_counter())
        for box in boxes:
            self._arrivals.setdefault(box, []).append(arrival)

    def _wait(self, arrivals: list[Arrival]) -> None:
        """Wait for the messages, then until the planned links would have brought them."""
        for each in arrivals:
            if each.arrived_s is None:
                each.work.wait()
                left_s = float(each.buffer[:STAMP_BYTES].view(torch.float64)[0])
                pair = f"{each.message.src}>{each.message.dst}"
                start = max(left_s, each.posted_s, self._free_by_channel.get(pair, 0.0))
                end = self._free_by_channel[pair] = start + each.message.seconds
                each.arrived_s = end + each.message.latency_s
            self._sleep_until(each.arrived_s)

    def _sleep_until(self, end_s: float) -> None:
        left = end_s - perf_counter() - self._overshoot_s
        if left > 0:
            time.sleep(left)


def seconds_of(price: StagePrice, kind: str) -> float:
    """The predicted time of a task."""
    return {
        "F": price.forward_s,
        "B": price.backward_s,
        "I": price.input_grad_s,
        "W": price.weight_grad_s,
        "R": price.left_s + price.reduce_s,
        "U": price.update_s,
    }[kind]


def measure_overshoot(num_rounds: int) -> float:
    """By how much a sleep is too long, as a median."""
    found = []
    for _ in range(num_rounds):
        start = perf_counter()
        time.sleep(1e-3)
        found.append(perf_counter() - start - 1e-3)
    return sorted(found)[num_rounds // 2]


def emulate_plan(plan: Plan, options: RunOptions, *, status: Status, board: Board) -> None:
    """Run the program with waits in place of compute; rank 0 reports."""
    require_agreement({"plan": encode_noun(plan).decode()})
    reporter, report = Reporter(options), RunReport()
    from graphplan_runtime.emulate_stream import StreamEmulator

    kind = Emulator if plan.policy.is_synchronous else StreamEmulator
    emulator = kind(plan, status=status, max_bytes=options.emulate_bytes)
    for index in range(options.steps):
        start = time.perf_counter()
        emulator.step()
        report.add(None, time.perf_counter() - start, emulator.ended)
        if emulator.rank == 0:
            reporter.show_step(index + 1, None, report.step_s[-1])
    start = time.perf_counter()
    emulator.drain()
    report.end([], time.perf_counter() - start, emulator.ended)
    report.peak_bytes = measure_peak(torch.device("cpu"))
    reporter.finish(collect_reports(report, emulator, board, options), rank=emulator.rank)
