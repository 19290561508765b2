"""Zero bubble: the backward in two halves, weight gradients where the device would idle.

ZB-H1 (arXiv 2401.10241) on stage graphs: stage s warms up with h(s) + 1 forwards as 1F1B does, then
runs I and F in turn and puts each W off until memory asks for it. On unequal stages a dispatch does
better: input gradients before forwards before weight gradients, which fill the waits. The best of
both is taken. Every stage may hold the activations of `in_flight`
micro-batches, by default those of 1F1B's fullest stage, max h + 1; more of them (up to 2 max h + 1,
ZB-H2) lengthen every warm-up alike.
"""

from __future__ import annotations

from dataclasses import replace

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.dispatch import Rules
from graphplan.schedule.inflight import count_in_flight
from graphplan.schedule.pool import Objective, Pool
from graphplan.schedule.priorities import measure_tails, rank_priorities
from graphplan.schedule.shop import F, G, Shop, W, join_orders, make_shop, name_tasks

DISPATCHES = (("GFW", 1.0), ("GFW", 0.0), ("GWF", 0.0), ("GFW", 0.5), ("GWF", 1.0), ("GWF", 0.5))
"""Levels and patience of the dispatches, best first."""


def build_zero_bubble(
    priced: PricedStages,
    *,
    in_flight: int | None = None,
    objective: Objective = "makespan",
    num_dispatches: int = len(DISPATCHES),
) -> Schedule:
    """The best of the static order and a few dispatches within the declared memory."""
    sizes = [price.micro_batch_size for price in priced.stages]
    samples = count_in_flight(priced, units=sizes)
    warmups = [i // b for i, b in zip(samples, sizes, strict=True)]
    declared = max(warmups) if in_flight is None else in_flight
    if declared < max(warmups):
        raise InvalidOption(
            f"{declared} micro-batches in flight are fewer than the {max(warmups)} of the longest"
            " warm-up.",
            remedy=f"Declare at least {max(warmups)}, or use schedule list or auto.",
        )
    shop = declare_memory(make_shop(priced), declared)
    limits = tuple(each + declared - max(warmups) for each in warmups)
    pool = Pool(shop, objective, bound_s=0.0)
    split = tuple(price.needs_backward for price in priced.stages)
    tails = measure_tails(shop, shop.durations_for(pool.shop.kinds_for(split)), split=split)
    if len(shop.stages_by_machine) == len(priced.stages):
        static = [order_halves(shop, s, limits[s], declared) for (s,) in shop.stages_by_machine]
        pool.offer(join_orders(static), split, name="zero-bubble")
    for levels, patience in DISPATCHES[: num_dispatches if pool.best else None]:
        priorities = rank_priorities(shop, tails, levels=levels)
        pool.offer_rules(Rules(split, limits, priorities, patience), name="zero-bubble")
    if pool.best is None:
        raise NoFeasiblePlan(
            f"Zero bubble with {declared} micro-batches in flight does not fit the devices.",
            remedy="Use smaller micro-batches, recompute activations, or schedule auto.",
        )
    return name_tasks(shop, pool.best.orders, pool.shop.kinds_for(split), name="zero-bubble")


def order_halves(shop: Shop, stage: int, limit: int, in_flight: int) -> list[int]:
    """The static order of a stage: warm-up, then I, the W that memory asks for, F, and so on."""
    count = shop.count_by_stage[stage]
    f, g, w = (shop.number_of(stage, row, 0) for row in (F, G, W))
    if not shop.priced.stages[stage].needs_backward:
        return list(range(f, f + count))
    warmup = min(count, limit)
    late = in_flight - warmup
    order = list(range(f, f + warmup))
    for m in range(count):
        order.append(g + m)
        if m >= late:
            order.append(w + m - late)
        if warmup + m < count:
            order.append(f + warmup + m)
    return order + list(range(w + max(0, count - late), w + count))


def declare_memory(shop: Shop, in_flight: int) -> Shop:
    """The shop with room for so many micro-batches of every stage, or less if memory is less."""
    stages = shop.priced.stages
    rooms = []
    for room, hosted in zip(shop.room_by_machine, shop.stages_by_machine, strict=True):
        saved = sum(shop.saved_by_stage[s] for s in hosted)
        workspace = max(stages[s].workspace_bytes for s in hosted)
        rooms.append(min(room, in_flight * saved + workspace))
    return replace(shop, room_by_machine=tuple(rooms))
