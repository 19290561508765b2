"""list: the best of many list schedules, then iterated greedy on the winner.

Starts vary the in-flight limits (the in-flight rule, more for long round trips, all that fits), the
priorities, the patience and whether backwards are split. The 1F1B order is in the pool too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice, product

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.bound import StageTerms, bound_schedule, measure_terms
from graphplan.schedule.dispatch import Rules
from graphplan.schedule.inflight import count_in_flight
from graphplan.schedule.interleaved import order_turns
from graphplan.schedule.iterate import iterate_greedy
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.pool import Objective, Pool
from graphplan.schedule.priorities import follow_orders, measure_tails, rank_priorities
from graphplan.schedule.shop import Shop, make_shop, name_tasks, number_tasks

Limits = tuple[int, ...]
LEVELS: tuple[tuple[str, ...], tuple[str, ...]] = (
    ("FGW", "any", "GFW"),
    ("any", "GFW", "FGW", "GWF"),
)
"""Priorities to try with whole and with split backwards, best first."""
TURNS = "turns"
"""Priorities by the turns that stages of one device take."""
PATIENCES = (0.0, 0.5, 1.0)


def build_list(
    priced: PricedStages,
    *,
    objective: Objective = "makespan",
    allow_split: bool = True,
    num_starts: int | None = None,
    num_rounds: int = 100,
    seed: int = 0,
) -> Schedule:
    """The best list schedule that fits memory, of all starts or the first few."""
    shop = make_shop(priced)
    bound = bound_schedule(priced, allow_split=allow_split)
    bound_s = bound.span_s if objective == "span" else bound.makespan_s
    pool = Pool(shop, objective, bound_s)
    with suppress(InvalidOption):
        whole = (False,) * len(priced.stages)
        pool.offer(number_tasks(shop, build_1f1b(priced)), whole, name="1f1b")
    rules = try_starts(pool, allow_split=allow_split, num_starts=num_starts)
    if rules is not None:
        iterate_greedy(pool, rules, num_rounds=num_rounds, seed=seed)
    if pool.best is None:
        raise NoFeasiblePlan(
            "No list schedule fits the memory of the devices.",
            remedy="Use smaller micro-batches, recompute activations, or cut more stages.",
        )
    return name_tasks(shop, pool.best.orders, split=pool.best.split, name="list")


def try_starts(pool: Pool, *, allow_split: bool, num_starts: int | None = None) -> Rules | None:
    """Offer the dispatch of every start, or of the first few; the rules of the best one."""
    best: Rules | None = None
    least = math.inf
    for rules in islice(list_starts(pool, allow_split=allow_split), num_starts):
        value = pool.offer_rules(rules, name="list")
        if value < least:
            least, best = value, rules
        if pool.is_optimal:
            break
    return best


def list_starts(
    pool: Pool, *, allow_split: bool, terms: Sequence[StageTerms] | None = None
) -> Iterator[Rules]:
    """Limits x priorities x patience, so that the first few differ most; whole backwards first."""
    shop = pool.shop
    limits = list_limits(shop, terms or measure_terms(shop, allow_split=allow_split))
    choices = [
        (rank, halves, level, limit, patience)
        for halves in ((False, True) if allow_split else (False,))
        for rank, level, limit, patience in _rank_choices(shop, LEVELS[halves], limits)
    ]
    priorities_of = cache(partial(_find_priorities, pool))
    for _, halves, level, limit, patience in sorted(choices, key=lambda choice: choice[:2]):
        yield Rules(_split_all(shop, halves), limit, priorities_of(halves, level), patience)


def _rank_choices(
    shop: Shop, levels: Sequence[str], limits: Sequence[Limits]
) -> Iterator[tuple[int, str, Limits, float]]:
    """Every choice with the sum of its positions: those of low rank vary in one thing at a time."""
    if is_shared(shop) and len(set(shop.count_by_stage)) == 1:
        levels = (TURNS, *levels)
    for (i, level), (j, limit), (k, patience) in product(
        enumerate(levels), enumerate(limits), enumerate(PATIENCES)
    ):
        yield i + j + 3 * k, level, limit, patience


def _find_priorities(pool: Pool, halves: bool, level: str) -> list[float]:
    shop = pool.shop
    if level == TURNS:
        return follow_orders(shop, order_turns(shop))
    split = _split_all(shop, halves)
    tails = measure_tails(shop, pool.durations(split), split=split)
    return rank_priorities(shop, tails, levels=level)


def _split_all(shop: Shop, halves: bool) -> tuple[bool, ...]:
    return tuple(halves and price.needs_backward for price in shop.priced.stages)


def is_shared(shop: Shop) -> bool:
    """Whether a device has several stages."""
    return len(shop.stages_by_machine) < len(shop.count_by_stage)


def list_limits(shop: Shop, terms: Sequence[StageTerms]) -> list[Limits]:
    """In-flight limits to try, each within the memory of its device, the most different first."""
    priced = shop.priced
    house = [each.in_flight for each in terms]
    sizes = [price.micro_batch_size for price in priced.stages]
    base = [i // b for i, b in zip(count_in_flight(priced, units=sizes), sizes, strict=True)]
    period = max(each.load_s / each.count for each in terms)
    trips = [
        math.ceil((t.forward_s + t.round_trip_s + t.gradient_s) / period) if period else 1
        for t in terms
    ]
    wanted = [house, base, [2 * x for x in base], [x + 1 for x in trips], [x + 1 for x in base]]
    if is_shared(shop):
        wanted.append([max(sizes) // size for size in sizes])  # the least that lets samples flow
    capped = [tuple(map(min, each, house)) for each in wanted]
    return list(dict.fromkeys(capped))
