"""modulo: the steady state as one period that repeats for every micro-batch, by CP-SAT.

Task x of micro-batch m starts at t_x + m T. Two tasks of one machine never meet if t_y - t_x modulo
T leaves room for both; a stage holds the micro-batches of as many periods as pass between its F and
its backward. The solver decides these whole numbers of periods first. The period T is the load of
the busiest device if memory allows, else the least that bisection finds; then the bytes in flight
are made least. The finite schedule runs the batch's micro-batches in the order of these times.

For asynchronous weight policies, which never drain, and for several stages on a device, where
greedy orders leave a few percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ortools.sat.python import cp_model

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.bound import free_room, measure_terms
from graphplan.schedule.shop import F, G, Orders, Shop, W, join_orders, make_shop, name_tasks

NUM_TICKS = 10**6
"""Ticks of the busiest device's load."""
NUM_BISECTIONS = 6


@dataclass(frozen=True)
class Period:
    """One period of a steady state."""

    period_s: float
    load_s: float
    """Work of the busiest device: no period is shorter."""
    starts: dict[tuple[int, int], float]
    """By stage and row, seconds from the start of micro-batch 0's first task."""
    bytes_in_flight: int
    proven: bool
    """Whether no period as short holds fewer bytes (and the period is the load)."""


def build_modulo(
    priced: PricedStages,
    *,
    allow_split: bool = False,
    accumulate: int | None = None,
    effort: float = 5.0,
    seed: int = 0,
) -> Schedule:
    """The batch in the order of the steady state; with `accumulate`, updates are part of it."""
    period = solve_period(
        make_shop(priced),
        allow_split=allow_split,
        accumulate=accumulate,
        effort=effort,
        seed=seed,
    )
    return repeat_period(priced, period, allow_split=allow_split)


def repeat_period(priced: PricedStages, period: Period, *, allow_split: bool = False) -> Schedule:
    """A batch of any number of micro-batches in the order of a steady state."""
    shop = make_shop(priced)
    split = [allow_split and price.needs_backward for price in priced.stages]
    return name_tasks(shop, unroll(shop, period), shop.kinds_for(split), name="modulo")


def unroll(shop: Shop, period: Period) -> Orders:
    """The orders of a batch that starts and ends with the steady state's times."""
    timed: list[list[tuple[float, int]]] = [[] for _ in shop.devices_by_machine]
    for (stage, row), start in period.starts.items():
        for m in range(shop.count_by_stage[stage]):
            at = start + m * period.period_s, shop.number_of(stage, row, m)
            timed[shop.machine_by_stage[stage]].append(at)
    return join_orders([[task for _, task in sorted(each)] for each in timed])


def solve_period(
    shop: Shop,
    *,
    allow_split: bool,
    accumulate: int | None = None,
    effort: float = 5.0,
    seed: int = 0,
) -> Period:
    """The shortest period that memory allows, then the fewest bytes in flight."""
    if len(set(shop.count_by_stage)) > 1:
        raise InvalidOption(
            "Schedule modulo wants micro-batches of one size at every stage.",
            remedy="Choose one micro-batch size, or schedule list or auto.",
        )
    seconds = measure_rows(shop, allow_split=allow_split, accumulate=accumulate)
    loads = [0.0] * len(shop.devices_by_machine)
    for (stage, _), each in seconds.items():
        loads[shop.machine_by_stage[stage]] += each
    load_s = max(loads)
    tick_s = load_s / NUM_TICKS if load_s else 1.0
    ticks = {key: int(each / tick_s) for key, each in seconds.items()}

    def solve(period: int, share: float = 1 / 8) -> Solved | None:
        return PeriodModel(shop, ticks, period, tick_s).solve(share * effort, seed)

    shortest = NUM_TICKS
    found = solve(shortest, 1 / 2)
    if found is None:
        shortest, found = bisect_period(solve, ticks)
    model = PeriodModel(shop, ticks, shortest, tick_s)
    model.minimise_memory()
    found = model.solve(effort / 2, seed) or found
    first = min(found.starts.values())
    return Period(
        period_s=shortest * tick_s,
        load_s=load_s,
        starts={key: (start - first) * tick_s for key, start in found.starts.items()},
        bytes_in_flight=found.bytes_in_flight,
        proven=found.proven and shortest == NUM_TICKS,
    )


def measure_rows(
    shop: Shop, *, allow_split: bool, accumulate: int | None
) -> dict[tuple[int, int], float]:
    """Seconds of each stage's tasks; the last row carries its share of the update."""
    seconds = {}
    for stage, price in enumerate(shop.priced.stages):
        closing = shop.closing_s(stage) / accumulate if accumulate else 0.0
        seconds[stage, F] = price.forward_s
        if price.needs_backward and allow_split:
            seconds[stage, G] = price.input_grad_s
            seconds[stage, W] = price.weight_grad_s + closing
        elif price.needs_backward:
            seconds[stage, G] = price.backward_s + closing
    return seconds


def bisect_period(
    solve: Callable[[int], Solved | None], ticks: dict[tuple[int, int], int]
) -> tuple[int, Solved]:
    """A period that fits, close to the shortest: between the load and all tasks in sequence."""
    low, high = NUM_TICKS, 2 * NUM_TICKS
    found = solve(high)
    while found is None:
        if low > 2 * sum(ticks.values()):
            raise NoFeasiblePlan(
                "The steady state does not fit the memory of the devices.",
                remedy="Use smaller micro-batches, recompute activations, or cut more stages.",
            )
        low, high = high, 2 * high
        found = solve(high)
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) // 2
        better = solve(middle)
        if better is None:
            low = middle
        else:
            high, found = middle, better
    return high, found


@dataclass(frozen=True)
class Solved:
    """An answer of the solver, in ticks."""

    starts: dict[tuple[int, int], int]
    bytes_in_flight: int
    proven: bool


class PeriodModel:
    """One period as a CP-SAT model."""

    def __init__(
        self, shop: Shop, ticks: dict[tuple[int, int], int], period: int, tick_s: float
    ) -> None:
        self.shop, self.ticks, self.period = shop, ticks, period
        self.model = cp_model.CpModel()
        self.houses = count_houses(
            shop, period * tick_s, allow_split=any(row == W for _, row in ticks)
        )
        self.num_periods = max(self.houses) + 2
        self.starts = {key: self.new_var(self.num_periods * period) for key in ticks}
        self.shifts: list[Any] = []
        """Everything counted in periods: with these known, the starts follow."""
        self.held: list[tuple[int, Any]] = []
        """Bytes of one micro-batch, and how many are held."""
        self.add_arcs({ends: int(delay / tick_s) for ends, delay in shop.delay_by_ends.items()})
        self.add_machines()
        self.add_memory()
        self.model.add_decision_strategy(
            self.shifts, cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE
        )

    def new_var(self, largest: int, least: int = 0) -> Any:
        """A whole number."""
        return self.model.new_int_var(least, largest, "")

    def new_shift(self, largest: int, least: int = 0) -> Any:
        """A number of periods."""
        self.shifts.append(self.new_var(largest, least))
        return self.shifts[-1]

    def add_arcs(self, delays: dict[tuple[int, int], int]) -> None:
        """A task of a micro-batch waits for its inputs."""
        for src, dst in self.shop.priced.edges:
            self.add_wait((src, F), (dst, F), delays[src, dst])
        for src, dst in self.shop.priced.backward_edges:
            self.add_wait((dst, G), (src, G), delays[dst, src])
        for stage, row in self.ticks:
            if row != F:
                self.add_wait((stage, row - 1), (stage, row), 0)

    def add_wait(self, before: tuple[int, int], after: tuple[int, int], delay: int) -> None:
        """`after` starts when `before` has ended and the message is there."""
        end = self.starts[before] + self.ticks[before]
        self.model.add(self.starts[after] >= end + delay)

    def add_machines(self) -> None:
        """Tasks of a machine do not overlap, whatever their micro-batches.

        For tasks x and y there is a whole k with x before y's copy k periods on, and that before
        x's next copy.
        """
        for stages in self.shop.stages_by_machine:
            keys = [key for key in self.ticks if key[0] in stages]
            for x, y in combinations(keys, 2):
                k = self.new_shift(self.num_periods, -self.num_periods)
                ahead = self.starts[y] - self.starts[x] + k * self.period
                self.model.add(ahead >= self.ticks[x])
                self.model.add(ahead <= self.period - self.ticks[y])

    def add_memory(self) -> None:
        """What the micro-batches between F, G and W hold fits on every machine."""
        for stages in self.shop.stages_by_machine:
            held: list[tuple[int, Any]] = []
            for stage in stages:
                price, largest = self.shop.priced.stages[stage], self.houses[stage]
                if (stage, G) in self.ticks:
                    freed = self.starts[stage, G] + self.ticks[stage, G]
                    num = self.count_held(self.starts[stage, F], freed, largest)
                    held.append((price.saved_bytes, num))
                if (stage, W) in self.ticks:
                    done = self.starts[stage, W] + self.ticks[stage, W]
                    num = self.count_held(freed, done, self.num_periods)
                    held.append((price.saved_for_weights_bytes, num))
            room = min(free_room(self.shop, stage) for stage in stages)
            self.model.add(sum(size * num for size, num in held) <= room)
            self.held += held

    def count_held(self, start: Any, end: Any, largest: int) -> Any:
        """Micro-batches that are between two moments of theirs at once."""
        num = self.new_shift(largest)
        self.model.add(num * self.period >= end - start)
        return num

    def minimise_memory(self) -> None:
        """Least bytes in flight over all machines."""
        self.model.minimize(sum(size * num for size, num in self.held))

    def solve(self, effort: float, seed: int) -> Solved | None:
        """What the solver finds with this effort, of which a unit is about a second."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed
        solver.parameters.linearization_level = 0
        solver.parameters.max_deterministic_time = effort / 2
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return Solved(
            starts={key: solver.value(start) for key, start in self.starts.items()},
            bytes_in_flight=sum(size * solver.value(num) for size, num in self.held),
            proven=status == cp_model.OPTIMAL,
        )


def count_houses(shop: Shop, period_s: float, *, allow_split: bool) -> list[int]:
    """By stage, more micro-batches in flight than any sensible steady state has."""
    terms = measure_terms(shop, allow_split=allow_split)
    houses = []
    for stage, each in enumerate(terms):
        trip = each.forward_s + each.round_trip_s + each.gradient_s
        hosted = shop.stages_by_machine[shop.machine_by_stage[stage]]
        many = 2 * math.ceil(trip / period_s) + 2 * len(hosted) + 2
        room = shop.saved_by_stage[stage]
        houses.append(min(many, free_room(shop, stage) // room) if room else many)
    return houses
