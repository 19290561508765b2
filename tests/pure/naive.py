"""A slow simulator on dictionaries, written from the words of the nouns, to test the fast one."""

from __future__ import annotations

from typing import NamedTuple

from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Task, Transfer

Row = tuple[str, str, float, float]
"""Name, place, start and end."""


class Key(NamedTuple):
    """A message: its transfer and its two devices."""

    transfer: Transfer
    src: int
    dst: int


class Naive:
    """Devices, posts and arrivals as dictionaries; every step looks at everything."""

    def __init__(self, priced: PricedStages, program: Program) -> None:
        self.priced = priced
        self.lines = [list(line) for line in program.instructions_by_device]
        self.clock = dict.fromkeys(range(len(self.lines)), 0.0)
        self.posted: dict[Key, int] = {}
        self.arrival: dict[Key, float] = {}
        self.free: dict[str, float] = {}
        self.spans: list[Row] = []

    def run(self) -> list[Row]:
        """All spans, sorted."""
        active = set(self.clock)
        while active:
            now, device = min((self.clock[d], d) for d in active)
            active.remove(device)
            line = self.lines[device]
            while line and isinstance(line[0], Transfer):
                self.post(device, line[0], now)
                line.pop(0)
            active |= self.start_waiting(active)
        return sorted(self.spans)

    def post(self, device: int, transfer: Transfer, now: float) -> None:
        price = self.priced.transfer_by_ends.get((transfer.src, transfer.dst))
        for message in price.messages if price else ():
            if device in (message.src, message.dst):
                key = Key(transfer, message.src, message.dst)
                self.posted[key] = self.posted.get(key, 0) + 1
                if self.posted[key] == 2:
                    start = max(now, self.free.get(message.channel, 0.0))
                    end = start + message.seconds
                    self.free[message.channel] = end
                    self.arrival[key] = end + message.latency_s
                    self.spans.append((str(transfer), message.channel, start, end))

    def start_waiting(self, active: set[int]) -> set[int]:
        """Start every task at the head of a line that has all it needs."""
        started = set()
        for device, line in enumerate(self.lines):
            if device in active or device in started or not line or isinstance(line[0], Transfer):
                continue
            task = line[0]
            assert isinstance(task, Task)
            together = self.priced.stages[task.stage].devices if task.kind == "R" else (device,)
            if any(self.lines[d][:1] != [task] or d in active for d in together):
                continue
            times = [self.clock[d] for d in together]
            needed = self.list_needs(device, task)
            if all(key in self.arrival for key in needed):
                start = max([*times, *(self.arrival[key] for key in needed)])
                for d in together:
                    self.clock[d] = start + self.measure(task)
                    self.spans.append((str(task), str(d), start, self.clock[d]))
                    self.lines[d].pop(0)
                    started.add(d)
        return started

    def list_needs(self, device: int, task: Task) -> list[Key]:
        priced, needs = self.priced, []
        if task.kind == "F":
            pairs = [(src, dst) for src, dst in priced.edges if dst == task.stage]
        elif task.kind in ("B", "I"):
            pairs = [(dst, src) for src, dst in priced.backward_edges if src == task.stage]
        else:
            pairs = []
        for src, dst in pairs:
            size, other = priced.stages[dst].micro_batch_size, priced.stages[src].micro_batch_size
            samples = range(task.micro_batch * size, (task.micro_batch + 1) * size)
            for m in sorted({sample // other for sample in samples}):
                for message in (
                    priced.transfer_by_ends[src, dst].messages
                    if ((src, dst) in priced.transfer_by_ends)
                    else ()
                ):
                    if message.dst == device:
                        transfer = Transfer(src, dst, "F" if task.kind == "F" else "B", m)
                        needs.append(Key(transfer, message.src, device))
        return needs

    def measure(self, task: Task) -> float:
        price = self.priced.stages[task.stage]
        return {
            "F": price.forward_s,
            "B": price.backward_s,
            "I": price.input_grad_s,
            "W": price.weight_grad_s,
            "R": price.reduce_s,
            "U": price.update_s,
        }[task.kind]
