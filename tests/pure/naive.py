"""A slow simulator on dictionaries, written from the words of the nouns, to test the fast one."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        self.fillers = {key: row for line in self.lines for key, row in self.find_fillers(line)}
        self.moments: dict[tuple[Task, int], list[float]] = {}
        """When each bucket is complete: by R and device."""
        self.reduced: dict[Task, list[float]] = {}
        """Ends of the buckets so far, by R."""

    def find_fillers(self, line: Sequence[Task | Transfer]) -> list[tuple[Task, Task]]:
        """Each R with buckets, and the last backward of its stage in front of it."""
        latest: dict[int, Task] = {}
        found = []
        for task in line:
            if isinstance(task, Task) and task.kind in "BW":
                latest[task.stage] = task
            elif isinstance(task, Task) and task.kind == "R" and task.stage in latest:
                filler = latest.pop(task.stage)
                found += [(task, filler)] if self.priced.stages[task.stage].reduction else []
        return found

    def run(self) -> list[Row]:
        """All spans, sorted."""
        active = set(self.clock)
        while active or self.list_complete():
            complete = sorted((now, r.stage, r.micro_batch, r) for now, r in self.list_complete())
            now, device = min(((self.clock[d], d) for d in active), default=(math.inf, -1))
            if complete and complete[0][0] < now:
                self.begin_bucket(complete[0][3], complete[0][0])
            else:
                active.remove(device)
                line = self.lines[device]
                while line and isinstance(line[0], Transfer):
                    self.post(device, line[0], now)
                    line.pop(0)
            active |= self.start_waiting(active)
        return sorted(self.spans)

    def list_complete(self) -> list[tuple[float, Task]]:
        """When the next bucket of each R is complete on all replicas."""
        found = []
        for reduce in self.fillers:
            price = self.priced.stages[reduce.stage]
            assert price.reduction is not None
            num_begun = len(self.reduced.get(reduce, []))
            known = [self.moments[reduce, d] for d in price.devices if (reduce, d) in self.moments]
            if len(known) == len(price.devices) and num_begun < len(price.reduction.buckets):
                found.append((max(moments[num_begun] for moments in known), reduce))
        return found

    def begin_bucket(self, reduce: Task, now: float) -> None:
        """It takes all lanes at once; tasks beside it become slower, and so does it."""
        price = self.priced.stages[reduce.stage]
        law = price.reduction
        assert law is not None
        ends = self.reduced.setdefault(reduce, [])
        start = max([now, *(self.free.get(lane, 0.0) for lane in law.lanes)])
        until = max([start, *(self.clock[d] for d in price.devices)])
        seconds = law.buckets[len(ends)].seconds
        beside_s = (until - start) * (1 + law.slows)
        if seconds * (1 + law.slowed) <= beside_s:
            end = start + seconds * (1 + law.slowed)
        else:
            end = start + beside_s + (seconds - beside_s / (1 + law.slowed))
        ends.append(end)
        for lane in set(law.lanes):
            self.free[lane] = end
            self.spans.append((str(reduce), lane, start, end))

        def move(moment: float) -> float:
            if moment <= start:
                return moment
            slow = start + (moment - start) * (1 + law.slows)
            return slow if slow <= end else moment + (end - start) * law.slows / (1 + law.slows)

        for d in price.devices:
            self.moments[reduce, d] = [move(moment) for moment in self.moments[reduce, d]]
            moved = move(self.clock[d])
            if moved != self.clock[d]:
                name, place, begun, _ = next(
                    row for row in reversed(self.spans) if row[1] == str(d)
                )
                self.spans.remove((name, place, begun, self.clock[d]))
                self.spans.append((name, place, begun, moved))
                self.clock[d] = moved

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
            law = self.priced.stages[task.stage].reduction
            has_buckets = task in self.fillers and law is not None
            if has_buckets and law is not None:
                if len(self.reduced.get(task, [])) < len(law.buckets):
                    continue
                times.append(self.reduced[task][-1])
            needed = self.list_needs(device, task)
            if all(key in self.arrival for key in needed):
                start = max([*times, *(self.arrival[key] for key in needed)])
                for d in together:
                    # An R with buckets has waited since it was there.
                    begun = self.clock[d] if has_buckets else start
                    self.clock[d] = start + self.measure(task)
                    self.spans.append((str(task), str(d), begun, self.clock[d]))
                    self.lines[d].pop(0)
                    started.add(d)
                    self.fill_buckets(d, task, start)
        return started

    def fill_buckets(self, device: int, task: Task, start: float) -> None:
        """The moments of the buckets that a task completes."""
        for reduce, filler in self.fillers.items():
            law = self.priced.stages[task.stage].reduction
            if filler == task and law is not None:
                self.moments[reduce, device] = [
                    start + (b.weight_grad_s if task.kind == "W" else b.backward_s)
                    for b in law.buckets
                ]

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
