"""list: the best of many list schedules, then iterated greedy on the winner.

Starts vary the in-flight limits (the in-flight rule, more for long round trips, all that fits), the
priorities, the patience and whether backwards are split. The 1F1B order is in the pool too.

Iterated greedy disturbs the rules of a list schedule and keeps what is not worse. Half of the
disturbances raise the priorities of a run of tasks on the critical path, the tasks that the
makespan waits for (squeaky wheel optimization, Joslin and Clements, JAIR 10, 1999); the others
shift some tasks of one stage, its in-flight limit, or the patience.

A rehearsal is the first two starts: what the best schedule will take, quickly. 1F1B alone misjudges
stages that end with a long reduction, or whose weight gradients may wait: orders that split the
backward are up to a fifth shorter there, and other stages are best then.

Slimming: of orders that take equally long, one that needs less memory. The search stops at the
first order that meets the bound, and tries all that fits in flight early; often the same step is
possible with far fewer micro-batches in flight.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice, product

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.play.script import Floats
from graphplan.schedule.bound import (
    bound_schedule,
    count_house,
    measure_backward,
    measure_least,
    measure_trips,
)
from graphplan.schedule.dispatch import Followed, Rules, dispatch_tasks, follow_orders
from graphplan.schedule.inflight import count_in_flight
from graphplan.schedule.interleaved import build_interleaved, rank_turns
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.pool import TOLERANCE, Candidate, Objective, Pool, measure_share, memory_of
from graphplan.schedule.priorities import measure_tails, rank_priorities
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
OTHER_PATIENCES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What a disturbance may choose."""
NUM_REHEARSED = 2
"""List schedules of a rehearsal, one with split and one with whole backwards."""
NUM_TRIED = 2
"""Rules that are tried for each choice of slimmer limits."""
WORTH = 0.02
"""Share of a device's memory below which less is not worth another order."""


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
        pool.offer(number_tasks(shop, build_1f1b(priced))[0], whole, name="1f1b")
    rules = try_starts(pool, allow_split=allow_split, num_starts=num_starts)
    if rules is not None:
        iterate_greedy(pool, rules, num_rounds=num_rounds, seed=seed)
    if pool.best is None:
        raise NoFeasiblePlan(
            "No list schedule fits the memory of the devices.",
            remedy="Use smaller micro-batches, recompute activations, or cut more stages.",
        )
    return name_tasks(shop, pool.best.orders, pool.shop.kinds_for(pool.best.split), name="list")


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
    """Limits x priorities x patience, so that the first few differ most; whole backwards first."""
    shop = pool.shop
    limits = list_limits(shop, allow_split=allow_split)
    choices = [
        (rank, halves, level, limit, patience)
        for halves in ((False, True) if allow_split else (False,))
        for rank, level, limit, patience in _rank_choices(shop, LEVELS[halves], limits)
    ]
    priorities_of = cache(partial(_find_priorities, shop))
    for _, halves, level, limit, patience in sorted(choices, key=lambda choice: choice[:2]):
        yield Rules(
            _split_all(shop, halves),
            limit,
            priorities_of(halves and level != TURNS, level),
            patience,
        )


def _rank_choices(
    shop: Shop, levels: Sequence[str], limits: Sequence[Limits]
) -> Iterator[tuple[int, str, Limits, float]]:
    """Every choice with the sum of its positions: those of low rank vary in one thing at a time."""
    if shop.is_shared and len(set(shop.count_by_stage)) == 1:
        levels = (TURNS, *levels)
    for (i, level), (j, limit), (k, patience) in product(
        enumerate(levels), enumerate(limits), enumerate(PATIENCES)
    ):
        yield i + j + 3 * k, level, limit, patience


def _find_priorities(shop: Shop, halves: bool, level: str) -> Floats:
    if level == TURNS:
        return rank_turns(shop)
    split = _split_all(shop, halves)
    tails = measure_tails(shop, shop.durations_for(shop.kinds_for(split)), split=split)
    return rank_priorities(shop, tails, levels=level)


def _split_all(shop: Shop, halves: bool) -> tuple[bool, ...]:
    return tuple(halves and price.needs_backward for price in shop.priced.stages)


def list_limits(shop: Shop, *, allow_split: bool) -> list[Limits]:
    """In-flight limits to try, each within the memory of its device, the most different first."""
    priced = shop.priced
    house = [count_house(shop, stage) for stage in range(len(priced.stages))]
    sizes = [price.micro_batch_size for price in priced.stages]
    base = [i // b for i, b in zip(count_in_flight(priced, units=sizes), sizes, strict=True)]
    gradient, rest = measure_backward(priced, allow_split=allow_split)
    forward = [price.forward_s for price in priced.stages]
    period = max(map(sum, zip(forward, gradient, rest, strict=True)))
    trips = zip(forward, measure_trips(shop, measure_least(shop), gradient), gradient, strict=True)
    ahead = [1 + (math.ceil(sum(trip) / period) if period else 1) for trip in trips]
    wanted = [house, base, [2 * x for x in base], ahead, [x + 1 for x in base]]
    if shop.is_shared:
        wanted.append([max(sizes) // size for size in sizes])  # the least that lets samples flow
    capped = [tuple(map(min, each, house)) for each in wanted]
    return list(dict.fromkeys(capped))


def iterate_greedy(pool: Pool, rules: Rules, *, num_rounds: int, seed: int) -> None:
    """Offer `num_rounds` dispatches, each a disturbance of the best one so far."""
    rng = random.Random(seed)
    current, path = math.inf, list[int]()
    for attempt in range(num_rounds):
        if pool.is_optimal:
            return
        trial = disturb_rules(pool.shop, rules, path, rng) if attempt else rules
        found = dispatch_tasks(pool.shop, trial)
        value = pool.offer_dispatched(found, trial.split, name="list")
        if found is not None and value <= current:
            current, rules = value, trial
            path = trace_path(pool.shop, found)


def disturb_rules(shop: Shop, rules: Rules, path: Sequence[int], rng: random.Random) -> Rules:
    """One random change of the rules."""
    choice = rng.random()
    if choice < 0.1:
        limits = list(rules.limits)
        stage = rng.randrange(len(limits))
        limits[stage] = max(1, limits[stage] + rng.choice((-1, 1)))
        return replace(rules, limits=tuple(limits))
    if choice < 0.15:
        return replace(rules, patience=rng.choice(OTHER_PATIENCES))
    priorities = rules.priorities.copy()
    scale = float(priorities.max() - priorities.min())
    if choice < 0.6 and path:
        tasks, shift = pick_run(path, rng), rng.uniform(0, 0.5) * scale
    else:
        stage, row = rng.randrange(len(shop.count_by_stage)), rng.randrange(3)
        count, first = shop.count_by_stage[stage], shop.number_of(stage, row, 0)
        tasks, shift = pick_run(range(first, first + count), rng), rng.uniform(-1, 1) * scale
    priorities[list(tasks)] += shift
    return replace(rules, priorities=priorities)


def pick_run(tasks: Sequence[int], rng: random.Random) -> Sequence[int]:
    """A few neighbours."""
    start = rng.randrange(len(tasks))
    return tasks[start : start + 1 + int(rng.expovariate(0.3))]


def trace_path(shop: Shop, found: Followed) -> list[int]:
    """Tasks that lead to the last end without a gap, last first."""
    start, end = found.times.task_start.tolist(), found.times.task_end.tolist()
    before = {
        task: line[i - 1] for line in found.orders.split() for i, task in enumerate(line) if i
    }
    needs = list_needs(shop)
    task = max((line[-1] for line in found.orders.split() if line), key=end.__getitem__)
    path = [task]
    while True:
        latest, reason = 0.0, -1
        if task in before:
            latest, reason = end[before[task]], before[task]
        for needed, delay in needs[task]:
            if end[needed] + delay > latest:
                latest, reason = end[needed] + delay, needed
        if reason < 0 or latest < start[task] * (1 - 1e-9):
            return path
        task = reason
        path.append(task)


def list_needs(shop: Shop) -> list[list[tuple[int, float]]]:
    """By task: the tasks that it waits for, and the seconds that pass after their ends."""
    needs: list[list[tuple[int, float]]] = [[] for _ in range(shop.num_tasks)]
    feeds = shop.feeds
    columns = (feeds.sender.tolist(), feeds.reader.tolist(), feeds.delay_s.tolist())
    for sender, reader, delay in zip(*columns, strict=True):
        needs[reader].append((sender, delay))
    return needs


def rehearse_orders(shop: Shop) -> Pool:
    """A pool with the best of a few quick orders; without one if none runs and fits.

    List schedules with split backwards come first, which are mostly best; the plain order, which
    hardly ever is, only where memory is too tight for them.
    """
    pool = Pool(shop, "makespan", bound_s=0.0)
    starts = list(islice(list_starts(pool, allow_split=True), NUM_REHEARSED))
    for rules in sorted(starts, key=lambda rules: not any(rules.split)):
        pool.offer_rules(rules, name="list")
    if pool.best is None:
        build = build_interleaved if shop.is_shared else build_1f1b
        with suppress(InvalidOption):
            orders, _ = number_tasks(shop, build(shop.priced))
            pool.offer(orders, (False,) * len(shop.count_by_stage), name="list")
    return pool


def build_rehearsed(priced: PricedStages) -> Schedule:
    """The schedule of the best quick order."""
    pool = rehearse_orders(make_shop(priced))
    if pool.best is None:
        raise NoFeasiblePlan(
            "No quick order fits the memory of the devices.",
            remedy="Use smaller micro-batches, recompute activations, or schedule auto.",
        )
    kinds = pool.shop.kinds_for(pool.best.split)
    return name_tasks(pool.shop, pool.best.orders, kinds, name="list")


def slim_best(pool: Pool, *, allow_split: bool) -> None:
    """Replace the best candidate by one of the same makespan that needs less memory, if any."""
    best, shop = pool.best, pool.shop
    if best is None or pool.objective != "makespan":
        return
    share = measure_share(shop, best.orders, pool.shop.kinds_for(best.split))
    limits = list_limits(shop, allow_split=allow_split)
    for limit in sorted(limits, key=lambda limit: _bound_share(shop, limit)):
        if _bound_share(shop, limit) > share - WORTH:
            return
        found = _try_limit(pool, limit, best, allow_split=allow_split)
        if found is not None:
            slimmer = measure_share(shop, found.orders, pool.shop.kinds_for(found.split))
            if slimmer <= share - WORTH:
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
        found = dispatch_tasks(pool.shop, rules)
        if found is None or found.makespan_s > best.value_s * (1 + TOLERANCE):
            continue
        again = follow_orders(pool.shop, found.orders, pool.shop.kinds_for(rules.split))
        value_s = pool.play(again, rules.split) if again else math.inf
        if value_s <= best.value_s * (1 + TOLERANCE):
            return Candidate(value_s, found.orders, rules.split, "list")
    return None


def _bound_share(shop: Shop, limit: Limits) -> float:
    """The largest share of a device's memory that these limits leave in use at least."""
    shares = []
    for machine, stages in enumerate(shop.stages_by_machine):
        memory = memory_of(shop, machine)
        fixed = memory - shop.room_by_machine[machine]
        held = max(min(limit[s], shop.count_by_stage[s]) * shop.saved_by_stage[s] for s in stages)
        shares.append((fixed + held) / memory)
    return max(shares)
