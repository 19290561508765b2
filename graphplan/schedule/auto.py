"""auto: the best schedule that fits memory, with a lower bound and whether it is proven optimal.

Cheap orders first, then list schedules, then iterated greedy, then CP-SAT; the search ends as soon
as an order meets the bound. Orders with whole backwards come first and win ties, as they are the
simplest to run. Budgets count tasks or the solver's deterministic time, so that equal input gives
equal output.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from graphplan.errors import InvalidOption, NoFeasiblePlan, UnknownName
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import SCHEDULES, Schedule
from graphplan.schedule.bound import bound_schedule
from graphplan.schedule.cpsat import improve_orders
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.greedy import build_list, iterate_greedy, slim_best, try_starts
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.kfkb import build_kfkb
from graphplan.schedule.modulo import build_modulo, solve_period, unroll
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.pool import TOLERANCE, Objective, Pool
from graphplan.schedule.shop import make_shop, name_tasks, number_tasks
from graphplan.schedule.zerobubble import build_zero_bubble

TASKS_PER_EFFORT = 100_000
"""Tasks that the list scheduler may place for an effort of 1: about a second's work."""
LARGE_ENOUGH = 20
"""Dispatches below which the budget is for the plainest orders only."""
LEAST_STARTS = 4
"""List schedules that are tried even when the budget is smaller: they differ much."""
MAX_SOLVER_TASKS = 3_000
"""Beyond this many tasks the solver does not get past its own start."""


@dataclass(frozen=True)
class ScheduleAnswer:
    """A schedule with what its program takes, and what no schedule can beat."""

    schedule: Schedule
    step_s: float
    """Under the objective: the makespan, or the span without a barrier."""
    bound_s: float
    proven: bool
    """Whether step_s is the least possible, to within a millionth."""

    @property
    def gap(self) -> float:
        """How far the schedule may be from the best: step / bound - 1."""
        return self.step_s / self.bound_s - 1 if self.bound_s else 0.0


Builder = Callable[[PricedStages], Schedule]

FIXED: dict[str, Builder] = {
    "1f1b": build_1f1b,
    "gpipe": build_gpipe,
    "kfkb": lambda priced: build_kfkb(priced, k=pick_block(priced)),
    "interleaved": build_interleaved,
    "zero-bubble": build_zero_bubble,
}
"""Schedules that take no search."""


def build_schedule(
    priced: PricedStages,
    *,
    name: str = "auto",
    objective: Objective = "makespan",
    effort: float = 10.0,
    seed: int = 0,
    allow_split: bool = True,
) -> ScheduleAnswer:
    """The named schedule, or the best one; `NoFeasiblePlan` if it does not fit memory."""
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    bound = bound_schedule(priced, allow_split=allow_split)
    bound_s = bound.span_s if objective == "span" else bound.makespan_s
    if name == "zero-bubble":
        if not allow_split:
            raise InvalidOption(
                "Schedule zero-bubble splits every backward, which is not allowed here.",
                remedy="Use schedule 1f1b, list or auto, or allow the split.",
            )
        found = build_zero_bubble(priced, objective=objective)
        return answer_with(priced, found, objective, bound_s)
    if name in FIXED:
        return answer_with(priced, FIXED[name](priced), objective, bound_s)
    if name == "list":
        num = count_dispatches(priced, allow_split=allow_split, effort=effort)
        found = build_list(
            priced,
            objective=objective,
            allow_split=allow_split,
            num_starts=max(1, num * 2 // 3),
            num_rounds=min(100, num // 3),
            seed=seed,
        )
        return answer_with(priced, found, objective, bound_s)
    if name == "modulo":
        found = build_modulo(priced, effort=effort, seed=seed)
        return answer_with(priced, found, objective, bound_s)
    pool = Pool(make_shop(priced), objective, bound_s)
    search_pool(pool, allow_split=allow_split, effort=effort, seed=seed)
    num = count_dispatches(priced, allow_split=allow_split, effort=effort)
    if num >= LARGE_ENOUGH:
        slim_best(pool, allow_split=allow_split)
    return answer_best(pool, name=None if name == "auto" else name)


def answer_with(
    priced: PricedStages, schedule: Schedule, objective: Objective, bound_s: float
) -> ScheduleAnswer:
    """The answer of a schedule that must fit memory."""
    found = evaluate_schedule(priced, schedule)
    for device, (peak, memory) in enumerate(
        zip(found.peak_bytes_by_device, priced.memory_bytes_by_device, strict=True)
    ):
        if peak > memory:
            raise NoFeasiblePlan(
                f"Schedule {schedule.name} needs {peak:,} bytes on device {device}, which has"
                f" {memory:,}.",
                remedy="Use schedule auto, smaller micro-batches, or recompute activations.",
            )
    step_s = found.span_s if objective == "span" else found.step_s
    return ScheduleAnswer(schedule, step_s, bound_s, proven=step_s <= bound_s * (1 + TOLERANCE))


def answer_best(pool: Pool, *, name: str | None) -> ScheduleAnswer:
    """The answer of a search; without a name the schedule is called after what made it."""
    best = pool.best
    if best is None:
        raise NoFeasiblePlan(
            "No schedule fits the memory of the devices.",
            remedy="Use smaller micro-batches, recompute activations, or cut more stages.",
        )
    kinds = pool.shop.kinds_for(best.split)
    schedule = name_tasks(pool.shop, best.orders, kinds, name=name or best.name)
    bound_s = min(pool.bound_s, best.value_s)
    return ScheduleAnswer(schedule, best.value_s, bound_s, proven=pool.is_optimal)


def search_pool(pool: Pool, *, allow_split: bool, effort: float, seed: int) -> None:
    """Offer order after order until one meets the bound or the effort is spent.

    Half of it is for dispatches, half for the solver.
    """
    priced, half = pool.shop.priced, effort / 2
    can_solve = count_tasks(priced, allow_split=allow_split) <= MAX_SOLVER_TASKS
    for _ in improve_pool(
        pool,
        allow_split=allow_split,
        num_dispatches=count_dispatches(priced, allow_split=allow_split, effort=half),
        solver_effort=half if can_solve else 0.0,
        seed=seed,
    ):
        if pool.is_optimal:
            return


def improve_pool(
    pool: Pool, *, allow_split: bool, num_dispatches: int, solver_effort: float, seed: int
) -> Iterator[None]:
    """The steps of the search, each better and slower than the one before."""
    yield from offer_fixed(pool, allow_split=allow_split, num_dispatches=num_dispatches)
    if solver_effort and pool.shop.is_shared:
        yield from offer_modulo(pool, allow_split=allow_split, effort=solver_effort, seed=seed)
    num_starts = max(LEAST_STARTS, num_dispatches // 2)
    rules = try_starts(pool, allow_split=allow_split, num_starts=num_starts)
    yield
    num_rounds = min(100, num_dispatches // 5)
    if rules is not None:
        iterate_greedy(pool, rules, num_rounds=num_rounds, seed=seed)
        yield
    if pool.best is not None and solver_effort:
        improve_orders(pool, allow_split=allow_split, effort=solver_effort, seed=seed)
        yield
    if rules is not None:
        left = max(0, num_dispatches - num_starts - num_rounds)
        iterate_greedy(pool, rules, num_rounds=left, seed=seed + 1)
        yield


def offer_fixed(pool: Pool, *, allow_split: bool, num_dispatches: int) -> Iterator[None]:
    """Offer the schedules that take no search, where these stages permit them."""
    num = len(pool.shop.count_by_stage)
    for name, builder in FIXED.items():
        if (name == "zero-bubble" and not allow_split) or (
            name == "interleaved" and not pool.shop.is_shared
        ):
            continue
        if name == "zero-bubble" and num_dispatches < LARGE_ENOUGH:
            builder = partial(build_zero_bubble, num_dispatches=1)
        try:
            schedule = builder(pool.shop.priced)
        except (InvalidOption, NoFeasiblePlan):
            continue
        tasks = itertools.chain.from_iterable(schedule.tasks_by_device)
        halves = {task.stage for task in tasks if task.kind == "I"}
        split = tuple(stage in halves for stage in range(num))
        pool.offer(number_tasks(pool.shop, schedule)[0], split, name=name)
        yield


def offer_modulo(pool: Pool, *, allow_split: bool, effort: float, seed: int) -> Iterator[None]:
    """Offer the steady state's order, with whole and with split backwards."""
    shop = pool.shop
    for halves in (False, True) if allow_split else (False,):
        try:
            period = solve_period(shop, allow_split=halves, effort=effort / 4, seed=seed)
        except (InvalidOption, NoFeasiblePlan):
            continue
        split = tuple(halves and price.needs_backward for price in shop.priced.stages)
        pool.offer(unroll(shop, period), split, name="modulo")
        yield


def pick_block(priced: PricedStages) -> int:
    """The least k >= 2 that divides the number of the largest micro-batches; 1 if that is 1."""
    count = min(priced.num_micro_batches(s) for s in range(len(priced.stages)))
    return next((k for k in range(2, count + 1) if count % k == 0), 1)


def count_dispatches(priced: PricedStages, *, allow_split: bool, effort: float) -> int:
    """Dispatches, or other passes over all tasks, that an effort is worth."""
    return max(1, int(effort * TASKS_PER_EFFORT / count_tasks(priced, allow_split=allow_split)))


def count_tasks(priced: PricedStages, *, allow_split: bool) -> int:
    """Tasks of one batch."""
    whole = 3 if allow_split else 2
    return sum(
        (whole if price.needs_backward else 1) * priced.num_micro_batches(s)
        for s, price in enumerate(priced.stages)
    )
