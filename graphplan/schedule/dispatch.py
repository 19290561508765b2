"""Dispatch: an event-driven list schedule; every free machine starts its most urgent ready task.

Micro-batches of a stage run in order within each kind. A forward starts only if the stage's
in-flight limit and the device's memory allow it; it leaves room for the later stages of its device,
so that a tight memory does not end in a deadlock. A machine may idle for a more urgent task whose
inputs are on their way (`patience`). Ties are broken by task number, so that runs are reproducible.

This is the inner loop of every search: state lies in plain lists by task, stage or machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from graphplan.schedule.shop import F, G, Orders, Shop, W


@dataclass(frozen=True)
class Rules:
    """What a dispatch obeys."""

    split: tuple[bool, ...]
    """By stage: I and W in place of B."""
    limits: tuple[int, ...]
    """By stage: micro-batches between F and the end of B or I."""
    priorities: Sequence[float]
    """By task number; the larger goes first."""
    patience: float = 0.0
    """Share of a ready task's time that a machine idles for a more urgent one."""


@dataclass(frozen=True)
class Dispatched:
    """Orders that run and fit, and what they take."""

    orders: Orders
    ends: list[float]
    """By task number."""
    makespan_s: float
    span_s: float


def dispatch_tasks(shop: Shop, rules: Rules, durations: Sequence[float]) -> Dispatched | None:
    """Orders of all machines, or None if the tasks block one another for want of memory."""
    return Dispatcher(shop, rules, durations).run()


class Dispatcher:
    """The state of one dispatch."""

    def __init__(self, shop: Shop, rules: Rules, durations: Sequence[float]) -> None:
        self.shop, self.rules, self.durations = shop, rules, durations
        stages, machines = range(len(shop.count_by_stage)), range(len(shop.devices_by_machine))
        self.rows = [rows_of(shop, s, split=rules.split[s]) for s in stages]
        self.kept = [
            price.saved_for_weights_bytes if rules.split[s] else 0
            for s, price in enumerate(shop.priced.stages)
        ]
        self.workspace = [price.workspace_bytes for price in shop.priced.stages]
        self.missing = [len(arcs) for arcs in shop.arcs_by_task]
        self.arrivals = [0.0] * shop.num_tasks
        self.ends = [0.0] * shop.num_tasks
        self.started = [[0, 0, 0] for _ in stages]
        """Tasks that each stage has started, by row."""
        self.flying = [0 for _ in stages]
        self.rooms = list(shop.room_by_machine)
        self.running = [-1 for _ in machines]
        self.free_s = [0.0 for _ in machines]
        self.first_s = [0.0 for _ in machines]
        self.orders: Orders = [[] for _ in machines]
        self.events = [(0.0, machine) for machine in machines]

    def run(self) -> Dispatched | None:
        """Take events in time order until nothing moves."""
        events, free_s = self.events, self.free_s
        heapify(events)
        while events:
            now = events[0][0]
            awake = set()
            while events and events[0][0] <= now:
                awake.add(heappop(events)[1])
            for machine in sorted(awake):
                if free_s[machine] <= now:
                    if self.running[machine] >= 0:
                        self.release(machine)
                    task = self.choose(machine, now)
                    if task >= 0:
                        self.start(machine, task, now)
        for stage, rows in enumerate(self.rows):
            if any(self.started[stage][row] < self.shop.count_by_stage[stage] for row in rows):
                return None
        span = max(end - first for end, first in zip(free_s, self.first_s, strict=True))
        return Dispatched(self.orders, self.ends, max(free_s), span)

    def release(self, machine: int) -> None:
        """Free what the machine's last task no longer needs."""
        task = self.running[machine]
        self.running[machine] = -1
        stage, row = self.shop.stage_by_task[task], self.shop.row_by_task[task]
        if row == G:
            self.flying[stage] -= 1
            self.rooms[machine] += self.shop.saved_by_stage[stage] - self.kept[stage]
        elif row == W:
            self.rooms[machine] += self.kept[stage]

    def choose(self, machine: int, now: float) -> int:
        """The most urgent ready task, -1 if there is none or a coming one is worth waiting for."""
        priorities, arrivals = self.rules.priorities, self.arrivals
        best, urgency = -1, 0.0
        coming: list[int] = []
        for task in self.candidates(machine):
            if arrivals[task] > now:
                coming.append(task)
            elif best < 0 or priorities[task] > urgency:
                best, urgency = task, priorities[task]
        if best >= 0 and coming and self.rules.patience:
            horizon = now + self.rules.patience * self.durations[best]
            for task in coming:
                if arrivals[task] <= horizon and priorities[task] > urgency:
                    return -1
        return best

    def candidates(self, machine: int) -> list[int]:
        """Next task of every stage and row whose inputs are there or on their way.

        A forward leaves room for one micro-batch of every later stage of the machine that holds
        none, since its own backward waits for theirs.
        """
        shop, missing, found = self.shop, self.missing, []
        reserved = 0
        for stage in reversed(shop.stages_by_machine[machine]):
            room = self.rooms[machine] - self.workspace[stage]
            count, task = shop.count_by_stage[stage], shop.first_by_stage[stage]
            saved, flying, started = (
                shop.saved_by_stage[stage],
                self.flying[stage],
                self.started[stage],
            )
            for row in self.rows[stage]:
                done = started[row]
                if done < count and not missing[task + done] and room >= 0:
                    full = row == F and (
                        saved + reserved > room or flying >= self.rules.limits[stage]
                    )
                    if not full:
                        found.append(task + done)
                task += count
            if not flying and started[F] < count:
                reserved += saved
        return found

    def start(self, machine: int, task: int, now: float) -> None:
        """Run a task and tell the tasks that wait for it when they may start."""
        shop, arrivals = self.shop, self.arrivals
        stage, row = shop.stage_by_task[task], shop.row_by_task[task]
        order, started = self.orders[machine], self.started[stage]
        if not order:
            self.first_s[machine] = now
        order.append(task)
        self.running[machine] = task
        started[row] += 1
        end = self.ends[task] = now + self.durations[task]
        for fed, delay in shop.feeds_by_task[task]:
            self.missing[fed] -= 1
            if end + delay > arrivals[fed]:
                arrivals[fed] = end + delay
            if not self.missing[fed]:
                there = shop.machine_by_stage[shop.stage_by_task[fed]]
                if there != machine or arrivals[fed] > end:  # its own end wakes the machine
                    heappush(self.events, (arrivals[fed], there))
        if row == F:
            if len(self.rows[stage]) > 1:
                self.flying[stage] += 1
                self.rooms[machine] -= shop.saved_by_stage[stage]
        elif row == self.rows[stage][-1] and started[row] == shop.count_by_stage[stage]:
            end += shop.closing_s(stage)
        self.free_s[machine] = end
        heappush(self.events, (end, machine))


def rows_of(shop: Shop, stage: int, *, split: bool) -> tuple[int, ...]:
    """The rows of tasks that a stage runs."""
    if not shop.priced.stages[stage].needs_backward:
        return (F,)
    return (F, G, W) if split else (F, G)
