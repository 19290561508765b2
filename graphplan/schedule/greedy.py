"""list: the best of many list schedules, then iterated greedy on the winner.

Starts vary the in-flight limits (the in-flight rule, more for long round trips, all that fits), the
priorities, the patience and whether backwards are split. The 1F1B order is in the pool too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
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


def list_starts(pool: Pool, *, allow_split: bool) -> Iterator[Rules]:
    """Limits x priorities x patience, whole backwards first."""
    shop = pool.shop
    terms = measure_terms(shop, allow_split=allow_split)
    for halves in (False, True) if allow_split else (False,):
        split = tuple(halves and price.needs_backward for price in shop.priced.stages)
        tails = measure_tails(shop, pool.durations(split), split=split)
        levels = ("GFW", "FGW", "GWF", "any") if halves else ("GFW", "FGW", "any")
        ranked = [rank_priorities(shop, tails, levels=name) for name in levels]
        if is_shared(shop) and len(set(shop.count_by_stage)) == 1:
            ranked.insert(0, follow_orders(shop, order_turns(shop)))
        for limits, priorities, patience in product(
            list_limits(shop, terms), ranked, (0.0, 0.5, 1.0)
        ):
            yield Rules(split, limits, priorities, patience)


def is_shared(shop: Shop) -> bool:
    """Whether a device has several stages."""
    return len(shop.stages_by_machine) < len(shop.count_by_stage)


def list_limits(shop: Shop, terms: list[StageTerms]) -> list[Limits]:
    """In-flight limits to try, each within the memory of its device."""
    priced = shop.priced
    house = [each.in_flight for each in terms]
    sizes = [price.micro_batch_size for price in priced.stages]
    base = [i // b for i, b in zip(count_in_flight(priced, units=sizes), sizes, strict=True)]
    period = max(each.load_s / each.count for each in terms)
    trips = [
        math.ceil((t.forward_s + t.round_trip_s + t.gradient_s) / period) if period else 1
        for t in terms
    ]
    wanted = [base, [x + 1 for x in base], [x + 1 for x in trips], [2 * x for x in base], house]
    if is_shared(shop):
        wanted.append([max(sizes) // size for size in sizes])  # the least that lets samples flow
    capped = [tuple(map(min, each, house)) for each in wanted]
    return list(dict.fromkeys(capped))
