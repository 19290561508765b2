"""Rehearsal: about what the best schedule of some stages will take, from a few quick orders.

1F1B alone misjudges stages that end with a long reduction, or whose weight gradients may wait:
orders that split the backward are up to a fifth shorter there, and other stages are best then.
Messages queue on the channels that they share (queued.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages
from graphplan.schedule.dispatch import dispatch_tasks
from graphplan.schedule.evaluate import close_orders, evaluate_orders
from graphplan.schedule.greedy import is_shared, list_starts
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.pool import Pool, fits_memory
from graphplan.schedule.queued import has_contention, run_queued
from graphplan.schedule.shop import Orders, Shop, make_shop, number_tasks

NUM_STARTS = 4
"""List schedules that are tried, two with whole and two with split backwards."""
NUM_ORDERS = NUM_STARTS + 1


def rehearse_orders(priced: PricedStages) -> list[float]:
    """Step seconds of each quick order, infinity for those that do not run or fit."""
    shop = make_shop(priced)
    pool = Pool(shop, "makespan", bound_s=0.0)
    contended = has_contention(priced)
    found = []
    for orders, split in _list_orders(pool):
        step_s = float("inf")
        if orders is not None:
            durations = pool.durations(split)
            closed = close_orders(shop, orders)
            if contended:
                ends = run_queued(shop, closed, durations)
            else:
                run = evaluate_orders(shop, closed, durations)
                ends = None if run is None else run.ends
            step_s = step_s if ends is None else max(ends)
        found.append(step_s)
    return found


def _list_orders(pool: Pool) -> Iterator[tuple[Orders | None, tuple[bool, ...]]]:
    """The plain order first, then list schedules; None where there is none."""
    shop = pool.shop
    whole = (False,) * len(shop.count_by_stage)
    orders = _order_plainly(shop)
    fits = orders is not None and fits_memory(shop, orders, whole)
    yield orders if fits else None, whole
    for rules in islice(list_starts(pool, allow_split=True), NUM_STARTS):
        found = dispatch_tasks(shop, rules, pool.durations(rules.split))
        yield None if found is None else found.orders, rules.split


def _order_plainly(shop: Shop) -> Orders | None:
    build = build_interleaved if is_shared(shop) else build_1f1b
    with suppress(InvalidOption):
        return number_tasks(shop, build(shop.priced))
    return None
