"""cpsat: the best order by constraint programming (OR-tools CP-SAT), started from a known one.

Seconds become whole ticks, rounded down, so that the solver's bound stays a bound; its answer is
evaluated with the exact seconds. Micro-batches of a stage run in order within each kind, which
loses nothing because they are identical. Memory: K in flight is the arc G[m-K] -> F[m]; memory that
is freed partly at I and partly at W is a staircase of such arcs; several stages on a device need a
cumulative constraint.

The solver has one thread, a fixed seed and a limit on its own deterministic time, so that equal
input gives equal output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ortools.sat.python import cp_model

from graphplan.schedule.bound import count_house, free_room
from graphplan.schedule.dispatch import follow_orders
from graphplan.schedule.pool import TOLERANCE, Candidate, Objective, Pool
from graphplan.schedule.shop import F, G, Orders, Shop, U, W, join_orders

MAX_TICKS: dict[Objective, int] = {"makespan": 10**9, "span": 10**4}
"""Ticks of the known step. A billion keep thousands of roundings below the tolerance of the pool;
but a span floats in time, and the solver refutes one that is a tick too short tick by tick."""
MAX_DENOMINATOR = 10**6
"""Of seconds that count as multiples of a common tick."""


def improve_orders(pool: Pool, *, allow_split: bool, effort: float, seed: int = 0) -> None:
    """Offer the solver's best orders to the pool, and raise the pool's bound to what it proved."""
    assert pool.best is not None
    shop_model = ShopModel(pool, pool.best, allow_split=allow_split)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    # A deterministic second takes about two on a computer of 2024.
    solver.parameters.max_deterministic_time = effort / 2
    # Job shops: linear relaxations and probing cost more than they give, bounds from below help.
    solver.parameters.linearization_level = 0
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.use_objective_lb_search = True
    status = solver.solve(shop_model.model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        pool.offer(*shop_model.read_orders(solver), name="cpsat")
    pool.bound_s = max(pool.bound_s, solver.best_objective_bound * shop_model.tick_s)


def choose_tick(shop: Shop, value_s: float, *, max_ticks: int) -> float:
    """The largest tick of which all seconds are multiples, or the smallest that is allowed."""
    durations = (*shop.seconds[:, :4].ravel().tolist(), *shop.closing.tolist())
    seconds = sorted({*durations, *shop.delay_by_ends.values()})
    fractions = [Fraction(each).limit_denominator(MAX_DENOMINATOR) for each in seconds]
    scale = math.lcm(*(each.denominator for each in fractions))
    tick = Fraction(math.gcd(*(int(each * scale) for each in fractions)), scale)
    exact = all(math.isclose(f, s, rel_tol=1e-12) for f, s in zip(fractions, seconds, strict=True))
    smallest = value_s / max_ticks
    return float(tick) if exact and tick >= smallest else smallest


@dataclass(frozen=True)
class Slot:
    """The variables of one task."""

    start: Any
    end: Any
    interval: Any


class ShopModel:
    """The job shop as a CP-SAT model."""

    def __init__(self, pool: Pool, hint: Candidate, *, allow_split: bool) -> None:
        self.shop: Shop = pool.shop
        self.model = cp_model.CpModel()
        self.tick_s = choose_tick(self.shop, hint.value_s, max_ticks=MAX_TICKS[pool.objective])
        self.known = self.ticks(hint.value_s) + 1
        spans = len(self.shop.devices_by_machine) if pool.objective == "span" else 0
        self.horizon = self.known * (1 + spans)  # without a barrier, spans may follow one another
        self.slots: dict[int, Slot] = {}
        self.split = [self.add_split(s, allow_split) for s in range(len(self.shop.count_by_stage))]
        for stage in range(len(self.shop.count_by_stage)):
            self.add_stage(stage)
        self.add_arcs()
        self.add_machines()
        self.add_memory()
        self.add_objective(pool.objective, pool.bound_s)
        self.add_hint(hint)

    def ticks(self, seconds: float) -> int:
        """Whole ticks, rounded down; quotients of floats fall a hair short of whole numbers."""
        return int(seconds / self.tick_s * (1 + 1e-12) + 1e-6)

    # Variables.

    def add_split(self, stage: int, allow_split: bool) -> Any:
        """1 if a stage runs I and W, 0 if it runs B, a variable if either may be better."""
        price = self.shop.priced.stages[stage]
        if not allow_split or not price.needs_backward:
            return 0
        if price.input_grad_s + price.weight_grad_s <= price.backward_s * (1 + TOLERANCE):
            return 1  # the halves cost no more and free memory no later
        return self.model.new_bool_var(f"split{stage}")

    def add_stage(self, stage: int) -> None:
        """One interval for every task; a stage that does not split has W's of no length."""
        shop, price, split = self.shop, self.shop.priced.stages[stage], self.split[stage]
        whole, half = self.ticks(price.backward_s), self.ticks(price.input_grad_s)
        for m in range(shop.count_by_stage[stage]):
            self.add_task(shop.number_of(stage, F, m), self.ticks(price.forward_s))
            if price.needs_backward:
                self.add_task(shop.number_of(stage, G, m), whole + (half - whole) * split)
            if self.may_split(stage):
                self.add_task(shop.number_of(stage, W, m), self.ticks(price.weight_grad_s) * split)
        if shop.closing_s(stage):
            last = shop.number_of(stage, U, shop.count_by_stage[stage] - 1)
            self.add_task(last, self.ticks(shop.closing_s(stage)))

    def may_split(self, stage: int) -> bool:
        """Whether the stage may run I and W."""
        return not isinstance(self.split[stage], int) or self.split[stage] == 1

    def add_task(self, task: int, size: Any) -> None:
        """Start, end and interval of a task."""
        start = self.model.new_int_var(0, self.horizon, f"start{task}")
        if isinstance(size, int):
            end = start + size
            interval = self.model.new_fixed_size_interval_var(start, size, f"task{task}")
        else:
            end = self.model.new_int_var(0, self.horizon, f"end{task}")
            interval = self.model.new_interval_var(start, size, end, f"task{task}")
        self.slots[task] = Slot(start, end, interval)

    # Constraints.

    def add_arcs(self) -> None:
        """A task waits for its inputs, and for the one before it of its stage and kind."""
        shop = self.shop
        feeds = shop.feeds
        columns = (feeds.sender.tolist(), feeds.reader.tolist(), feeds.delay_s.tolist())
        for sender, reader, delay in zip(*columns, strict=True):
            if reader in self.slots:
                end = self.slots[sender].end + self.ticks(delay)
                self.model.add(self.slots[reader].start >= end)
        for task, slot in self.slots.items():
            stage, row, m = shop.place_of(task)
            if row == U:
                last = shop.number_of(stage, W if self.may_split(stage) else G, m)
                self.model.add(slot.start == self.slots[last].end)
            elif m:
                self.model.add(slot.start >= self.slots[task - 1].end)
            if row == W and not isinstance(self.split[stage], int):
                whole = self.slots[shop.number_of(stage, G, m)].end
                self.model.add(slot.start == whole).only_enforce_if(~self.split[stage])

    def add_machines(self) -> None:
        """A machine runs one task at a time."""
        intervals: list[list[Any]] = [[] for _ in self.shop.devices_by_machine]
        for task, slot in self.slots.items():
            intervals[self.shop.machine_of[task]].append(slot.interval)
        for each in intervals:
            self.model.add_no_overlap(each)

    def add_memory(self) -> None:
        """Activations and workspace fit on every machine at all times."""
        for machine, stages in enumerate(self.shop.stages_by_machine):
            for stage in stages:
                self.add_house(stage)
            if len(stages) > 1:
                self.add_cumulative(machine)
            elif self.is_freed_twice(stages[0]):
                self.add_staircase(stages[0])

    def is_freed_twice(self, stage: int) -> bool:
        """Whether memory is freed partly at I and partly at W."""
        kept = self.shop.priced.stages[stage].saved_for_weights_bytes
        return self.may_split(stage) and kept > 0

    def add_house(self, stage: int) -> None:
        """F[m] starts after the end of G[m-K]."""
        shop = self.shop
        if shop.priced.stages[stage].needs_backward:
            house = count_house(shop, stage)
            for m in range(house, shop.count_by_stage[stage]):
                before = self.slots[shop.number_of(stage, G, m - house)]
                self.model.add(self.slots[shop.number_of(stage, F, m)].start >= before.end)

    def add_staircase(self, stage: int) -> None:
        """F[m] waits for g gradients and for as many W's as memory asks for beside them.

        When g of the micro-batches 0..m have run I and w of them W, the device holds
        (m+1-g) saved + (g-w) kept bytes. Every g has its least w: one of these pairs must be done.
        """
        shop, price = self.shop, self.shop.priced.stages[stage]
        saved, kept = price.saved_bytes, price.saved_for_weights_bytes
        free, house = free_room(shop, stage), count_house(shop, stage)
        for m in range(shop.count_by_stage[stage]):
            start = self.slots[shop.number_of(stage, F, m)].start
            pairs: list[tuple[int, int]] = []
            for g in range(max(0, m + 1 - house), m + 1):
                w = max(0, g - (free - (m + 1 - g) * saved) // kept)
                if not pairs or w < pairs[-1][1]:
                    pairs.append((g, w))
            if pairs[0][1] == 0:
                continue  # the arc of the house already says it
            steps = []
            for g, w in pairs:
                step = self.model.new_bool_var("") if len(pairs) > 1 else True
                for row, num in ((G, g), (W, w)):
                    if num:
                        before = self.slots[shop.number_of(stage, row, num - 1)].end
                        self.model.add(start >= before).only_enforce_if(step)
                steps.append(step)
            self.model.add_bool_or(steps)

    def add_cumulative(self, machine: int) -> None:
        """Bytes held by micro-batches and by the running task never exceed the room."""
        shop = self.shop
        intervals, demands = [], []
        for stage in shop.stages_by_machine[machine]:
            price = shop.priced.stages[stage]
            for m in range(shop.count_by_stage[stage]):
                f, g, w = (self.slots.get(shop.number_of(stage, row, m)) for row in (F, G, W))
                assert f is not None
                if g is not None:
                    intervals.append(self.hold(f.start, g.end))
                    demands.append(price.saved_bytes)
                if g is not None and w is not None and self.is_freed_twice(stage):
                    intervals.append(self.hold(g.end, w.end))
                    demands.append(price.saved_for_weights_bytes)
                for slot in (f, g, w):
                    if slot is not None and price.workspace_bytes:
                        intervals.append(slot.interval)
                        demands.append(price.workspace_bytes)
        self.model.add_cumulative(intervals, demands, shop.room_by_machine[machine])

    def hold(self, start: Any, end: Any) -> Any:
        """The interval from one moment to another."""
        size = self.model.new_int_var(0, self.horizon, "")
        return self.model.new_interval_var(start, size, end, "")

    # Objective, start and answer.

    def add_objective(self, objective: Objective, bound_s: float) -> None:
        """Least makespan, or least time between a machine's first start and last end."""
        least = self.ticks(bound_s * (1 - TOLERANCE))
        value = self.model.new_int_var(least, self.known, "value")
        firsts: list[Any] = [0] * len(self.shop.devices_by_machine)
        if objective == "span":
            firsts = [self.model.new_int_var(0, self.horizon, "") for _ in firsts]
        for task, slot in self.slots.items():
            first = firsts[self.shop.machine_of[task]]
            self.model.add(value >= slot.end - first)
            if objective == "span":
                self.model.add(first <= slot.start)
        self.model.minimize(value)

    def add_hint(self, hint: Candidate) -> None:
        """Start from the known orders; what is rounded down still follows one another."""
        followed = follow_orders(self.shop, hint.orders, self.shop.kinds_for(hint.split))
        assert followed is not None
        starts = followed.times.task_start.tolist()
        for task in followed.times.sequence.tolist():
            if task in self.slots:
                self.model.add_hint(self.slots[task].start, self.ticks(starts[task]))
        for stage, split in enumerate(self.split):
            if not isinstance(split, int):
                self.model.add_hint(split, hint.split[stage])

    def read_orders(self, solver: cp_model.CpSolver) -> tuple[Orders, tuple[bool, ...]]:
        """Tasks by start; a whole backward has no W."""
        shop = self.shop
        split = tuple(
            bool(each if isinstance(each, int) else solver.value(each)) for each in self.split
        )
        timed: list[list[tuple[int, int, int]]] = [[] for _ in shop.devices_by_machine]
        for task, slot in self.slots.items():
            stage, row, _ = shop.place_of(task)
            if row != U and (row != W or split[stage]):
                key = solver.value(slot.start), solver.value(slot.end), task
                timed[shop.machine_by_stage[stage]].append(key)
        return join_orders([[task for _, _, task in sorted(each)] for each in timed]), split
