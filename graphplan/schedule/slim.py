"""Slimming: of orders that take equally long, one that needs less memory.

The search stops at the first order that meets the bound, and tries all that fits in flight early:
often the same step is possible with far fewer micro-batches in flight.
"""

from __future__ import annotations

from itertools import islice

from graphplan.schedule.bound import measure_terms
from graphplan.schedule.dispatch import dispatch_tasks
from graphplan.schedule.evaluate import close_orders, evaluate_orders
from graphplan.schedule.greedy import Limits, list_limits, list_starts
from graphplan.schedule.pool import TOLERANCE, Candidate, Pool, measure_share
from graphplan.schedule.shop import Shop

NUM_TRIED = 2
"""Rules that are tried for each choice of limits."""
WORTH = 0.02
"""Share of a device's memory below which less is not worth another order."""


def slim_best(pool: Pool, *, allow_split: bool) -> None:
    """Replace the best candidate by one of the same makespan that needs less memory, if any."""
    best, shop = pool.best, pool.shop
    if best is None or pool.objective != "makespan":
        return
    share = measure_share(shop, best.orders, best.split)
    limits = list_limits(shop, measure_terms(shop, allow_split=allow_split))
    for limit in sorted(limits, key=lambda limit: _bound_share(shop, limit)):
        if _bound_share(shop, limit) > share - WORTH:
            return
        found = _try_limit(pool, limit, best, allow_split=allow_split)
        if found is not None and measure_share(shop, found.orders, found.split) <= share - WORTH:
            pool.best = found
            return


def _try_limit(
    pool: Pool, limit: Limits, best: Candidate, *, allow_split: bool
) -> Candidate | None:
    """An order within the limits that takes no longer than the best."""
    starts = (
        rules
        for rules in list_starts(pool, allow_split=allow_split)
        if rules.limits == limit and any(rules.split) == any(best.split)
    )
    for rules in islice(starts, NUM_TRIED):
        durations = pool.durations(rules.split)
        found = dispatch_tasks(pool.shop, rules, durations)
        if found is None or found.makespan_s > best.value_s * (1 + TOLERANCE):
            continue
        run = evaluate_orders(pool.shop, close_orders(pool.shop, found.orders), durations)
        if run is not None and max(run.ends) <= best.value_s * (1 + TOLERANCE):
            return Candidate(max(run.ends), found.orders, rules.split, "list")
    return None


def _bound_share(shop: Shop, limit: Limits) -> float:
    """The largest share of a device's memory that these limits leave in use at least."""
    shares = []
    for machine, stages in enumerate(shop.stages_by_machine):
        memory = min(
            shop.priced.memory_bytes_by_device[d] for d in shop.devices_by_machine[machine]
        )
        fixed = memory - shop.room_by_machine[machine]
        held = max(min(limit[s], shop.count_by_stage[s]) * shop.saved_by_stage[s] for s in stages)
        shares.append((fixed + held) / memory)
    return max(shares)
