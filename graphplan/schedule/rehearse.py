"""Rehearsal: about what the best schedule of some stages will take, from a few quick orders.

1F1B alone misjudges stages that end with a long reduction, or whose weight gradients may wait:
orders that split the backward are up to a fifth shorter there, and other stages are best then.
Messages queue on the channels that they share (queued.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.bound import StageTerms, bound_terms, measure_terms
from graphplan.schedule.dispatch import dispatch_tasks
from graphplan.schedule.evaluate import close_orders, evaluate_orders
from graphplan.schedule.greedy import is_shared, list_starts
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.pool import Pool, fits_memory
from graphplan.schedule.queued import has_contention, run_queued
from graphplan.schedule.shop import Orders, Shop, make_shop, name_tasks, number_tasks

NUM_STARTS = 2
"""List schedules that are tried, one with split and one with whole backwards."""
NEAR = 2e-3
"""Distance from the lower bound at which no further order is tried."""


@dataclass(frozen=True)
class Rehearsal:
    """The best of the quick orders, and its step seconds; infinity if none runs and fits."""

    step_s: float
    orders: Orders
    split: tuple[bool, ...]


def rehearse_orders(shop: Shop) -> Rehearsal:
    """The best of a few quick orders."""
    terms = measure_terms(shop, allow_split=True)
    pool = Pool(shop, "makespan", bound_terms(shop, terms).makespan_s)
    contended = has_contention(shop.priced)
    best = Rehearsal(float("inf"), [], ())
    for orders, split in _list_orders(pool, terms):
        step_s = _run_orders(pool, orders, split, contended=contended)
        if step_s < best.step_s:
            best = Rehearsal(step_s, orders, split)
        if best.step_s <= pool.bound_s * (1 + NEAR):
            break
    return best


def build_rehearsed(priced: PricedStages) -> Schedule:
    """The schedule of the best quick order."""
    shop = make_shop(priced)
    best = rehearse_orders(shop)
    if not best.orders:
        raise NoFeasiblePlan(
            "No quick order fits the memory of the devices.",
            remedy="Use smaller micro-batches, recompute activations, or schedule auto.",
        )
    return name_tasks(shop, best.orders, split=best.split, name="list")


def _run_orders(pool: Pool, orders: Orders, split: tuple[bool, ...], *, contended: bool) -> float:
    closed, durations = close_orders(pool.shop, orders), pool.durations(split)
    if contended:
        ends = run_queued(pool.shop, closed, durations)
    else:
        run = evaluate_orders(pool.shop, closed, durations)
        ends = None if run is None else run.ends
    return float("inf") if ends is None else max(ends)


def _list_orders(
    pool: Pool, terms: Sequence[StageTerms]
) -> Iterator[tuple[Orders, tuple[bool, ...]]]:
    """List schedules with split backwards first, which are mostly best; the plain order, which
    hardly ever is, only where memory is too tight for them."""
    shop = pool.shop
    starts = list(islice(list_starts(pool, allow_split=True, terms=terms), NUM_STARTS))
    listed = False
    for rules in sorted(starts, key=lambda rules: not any(rules.split)):
        found = dispatch_tasks(shop, rules, pool.durations(rules.split))
        if found is not None:
            listed = True
            yield found.orders, rules.split
    if listed:
        return
    whole = (False,) * len(shop.count_by_stage)
    orders = _order_plainly(shop)
    if orders is not None and fits_memory(shop, orders, whole):
        yield orders, whole


def _order_plainly(shop: Shop) -> Orders | None:
    build = build_interleaved if is_shared(shop) else build_1f1b
    with suppress(InvalidOption):
        return number_tasks(shop, build(shop.priced))
    return None
