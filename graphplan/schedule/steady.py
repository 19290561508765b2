"""Steady orders for the asynchronous weight policies: warm-up, then one forward, one backward.

Stage s runs w_s + 1 forwards, then a backward and a forward in turn; its weights are w_s updates
old when a forward reads them. An order with any warm-ups is free of deadlock if w_a >= w_b on every
edge a -> b. With free messages w_s = h(s) keeps the busiest device busy. A message of d seconds
each way takes ceil(2 d / cycle) more for its edge, which costs memory and staleness: of the
warm-ups between the two, the ones with the fewest bytes whose period is within `SLACK` of the best
are taken. Where memory does not suffice, the warm-ups are cut, downstream too. Several stages on a
device follow the order of `modulo`.
"""

from __future__ import annotations

import math

import msgspec

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.schedule.bound import count_house
from graphplan.schedule.dispatch import check_policy
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.kfkb import order_stage, refuse_shared
from graphplan.schedule.modulo import build_modulo
from graphplan.schedule.shop import Shop, make_shop

SLACK = 0.01
"""Share of the period that fewer micro-batches in flight may cost."""
LADDER = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the latency's extra micro-batches that are tried."""


def plan_steady(
    priced: PricedStages,
    name: PolicyName,
    *,
    accumulate: int | None = None,
    effort: float = 5.0,
    seed: int = 0,
) -> tuple[WeightPolicy, Schedule]:
    """An asynchronous policy with its warm-ups, and its schedule of one batch.

    Without `accumulate` every micro-batch is an update, except for 2bw: the fewest micro-batches
    that its two versions allow.
    """
    if any(len(hosted) > 1 for hosted in priced.stages_by_device):
        schedule = build_modulo(priced, accumulate=accumulate or 1, effort=effort, seed=seed)
        policy = make_policy(priced, name, read_warmups(priced, schedule), accumulate)
        return policy, msgspec.structs.replace(schedule, name="steady")
    warmups = plan_warmups(priced, accumulate=accumulate or 1)
    policy = make_policy(priced, name, warmups, accumulate)
    return policy, build_steady(priced, policy)


def build_steady(priced: PricedStages, policy: WeightPolicy) -> Schedule:
    """The static order of one batch with the policy's warm-ups."""
    check_policy(priced, policy)
    refuse_shared(priced, name="steady")
    for a, b in priced.edges:
        if policy.warmups[a] < policy.warmups[b]:
            raise InvalidOption(
                f"Stage {a} has {policy.warmups[a]} warm-ups and feeds stage {b}, which has"
                f" {policy.warmups[b]}: they would wait for one another.",
                remedy=f"Give stage {a} at least {policy.warmups[b]}.",
            )
    return order_steady(priced, policy.warmups)


def order_steady(priced: PricedStages, warmups: tuple[int, ...]) -> Schedule:
    """w_s + 1 forwards, then backward and forward in turn."""
    by_device: list[tuple[Task, ...]] = [() for _ in priced.memory_bytes_by_device]
    for stage, price in enumerate(priced.stages):
        in_flight = warmups[stage] + 1
        tasks = tuple(order_stage(priced, stage, num_per_block=1, num_in_flight=in_flight))
        for device in price.devices:
            by_device[device] = tasks
    return Schedule(name="steady", tasks_by_device=tuple(by_device))


def make_policy(
    priced: PricedStages, name: PolicyName, warmups: tuple[int, ...], accumulate: int | None
) -> WeightPolicy:
    """The policy, checked."""
    if accumulate is None:
        accumulate = choose_accumulate(name, warmups, priced.num_micro_batches(0))
    policy = WeightPolicy(name=name, warmups=warmups, accumulate=accumulate)
    if policy.is_synchronous:
        raise InvalidOption(
            f"Policy {name} ends every batch with a barrier and has no steady order.",
            remedy="Use build_schedule for it, or choose stash, 2bw or predict.",
        )
    check_policy(priced, policy)
    return policy


def choose_accumulate(name: PolicyName, warmups: tuple[int, ...], count: int) -> int:
    """The fewest micro-batches of an update that the policy allows and that divide the batch."""
    least = max((1, *warmups)) if name == "2bw" else 1
    return next((m for m in range(least, count + 1) if count % m == 0), least)


def plan_warmups(priced: PricedStages, *, accumulate: int = 1) -> tuple[int, ...]:
    """Warm-ups that price the latency of messages against memory."""
    shop = make_shop(priced)
    tried: dict[tuple[int, ...], float] = {}
    for share in LADDER:
        warmups = cap_warmups(shop, count_warmups(shop, share, accumulate))
        if warmups not in tried:
            tried[warmups] = measure_period(priced, warmups, accumulate=accumulate)
    best = min(tried.values())
    good = [warmups for warmups, period in tried.items() if period <= best * (1 + SLACK)]
    return min(good, key=lambda each: (sum(map(int.__mul__, each, shop.saved_by_stage)), each))


def count_warmups(shop: Shop, share: float, accumulate: int) -> list[int]:
    """One more than each successor, and a share of the extra that its messages ask for."""
    priced = shop.priced
    backward = set(priced.backward_edges)
    cycle = max(
        price.forward_s + price.backward_s + shop.closing_s(s) / accumulate
        for s, price in enumerate(priced.stages)
    )
    needed = [0.0] * len(priced.stages)
    for a, b in sorted(priced.edges, reverse=True):
        step = 0.0
        if (a, b) in backward:
            delay = shop.delay_by_ends[a, b] + shop.delay_by_ends[b, a]
            step = 1 + share * math.ceil(delay / cycle) if cycle else 1.0
        needed[a] = max(needed[a], needed[b] + step)
    return [math.ceil(each) for each in needed]


def cap_warmups(shop: Shop, warmups: list[int]) -> tuple[int, ...]:
    """The warm-ups that memory allows, falling along every edge."""
    capped = [
        min(each, count_house(shop, stage) - 1) if shop.saved_by_stage[stage] else each
        for stage, each in enumerate(warmups)
    ]
    for a, b in shop.priced.edges:  # sorted, so that a is final
        capped[b] = min(capped[a], capped[b])
    return tuple(capped)


def measure_period(priced: PricedStages, warmups: tuple[int, ...], *, accumulate: int = 1) -> float:
    """Seconds of one more micro-batch in the steady state of these warm-ups."""
    size = priced.stages[0].micro_batch_size
    short = accumulate * -(-max(60, 4 * (max(warmups) + 2)) // accumulate)
    policy = WeightPolicy(name="stash", warmups=warmups, accumulate=accumulate)
    ends = []
    for count in (short, 2 * short):
        longer = msgspec.structs.replace(priced, batch_size=count * size)
        schedule = order_steady(longer, warmups)
        ends.append(evaluate_schedule(longer, schedule, policy).step_s)
    return (ends[1] - ends[0]) / short


def read_warmups(priced: PricedStages, schedule: Schedule) -> tuple[int, ...]:
    """Forwards of each stage before its first backward, less one."""
    warmups = [0] * len(priced.stages)
    for stage, price in enumerate(priced.stages):
        kinds = [t.kind for t in schedule.tasks_by_device[price.devices[0]] if t.stage == stage]
        first = next((i for i, kind in enumerate(kinds) if kind != "F"), len(kinds))
        warmups[stage] = max(0, first - 1)
    return tuple(warmups)
