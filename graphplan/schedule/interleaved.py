"""Interleaved 1F1B: several stages on a device take turns (Megatron-LM, arXiv 2104.04473).

A device runs its stages in rounds: as many micro-batches of its first stage as it takes for the
first of them to come back to the device, then as many of its next stage, and so on. Backwards take
the same turns from the last stage up. Two stages of a chain on each of two devices, four
micro-batches:

    0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
    1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

Megatron's and torch's interleaved order on chains is the special case; on a graph, the way from one
stage of a device to the next is the longest path, and h(s) takes the place of the rank. Where the
turns of different devices would block one another, or a stage does not reach the device's others,
tasks are taken as they become ready, earliest turn first.
"""

from __future__ import annotations

from itertools import pairwise

from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.dispatch import Rules, dispatch_tasks
from graphplan.schedule.evaluate import durations_for, evaluate_orders
from graphplan.schedule.pool import fits_memory
from graphplan.schedule.priorities import follow_orders
from graphplan.schedule.shop import F, G, Orders, Shop, make_shop, name_tasks


def build_interleaved(priced: PricedStages) -> Schedule:
    """The interleaved order of stages with micro-batches of one size."""
    if len({stage.micro_batch_size for stage in priced.stages}) > 1:
        raise InvalidOption(
            "Schedule interleaved wants micro-batches of one size at every stage.",
            remedy="Choose one micro-batch size, or schedule gpipe, list or auto.",
        )
    shop = make_shop(priced)
    whole = (False,) * len(priced.stages)
    orders = order_turns(shop)
    durations = durations_for(shop, whole)
    if evaluate_orders(shop, orders, durations) is None or not fits_memory(shop, orders, whole):
        orders = untangle(shop, orders) or orders
    return name_tasks(shop, orders, split=whole, name="interleaved")


def order_turns(shop: Shop) -> Orders:
    """The static orders of all machines, which need not fit or even run."""
    return [order_machine(shop, hosted) for hosted in shop.stages_by_machine]


def order_machine(shop: Shop, hosted: tuple[int, ...]) -> list[int]:
    """Warm-up, one forward and one backward in turn, drain."""
    stages = shop.priced.stages
    count = shop.count_by_stage[0]
    size = measure_round(shop.priced)
    training = [s for s in hosted if stages[s].needs_backward]
    forwards = take_turns(shop, list(hosted), F, count=count, size=size)
    backwards = take_turns(shop, training[::-1], G, count=count, size=size)
    warmup = len(forwards)
    if training:
        last = training[-1]
        warmup = min(warmup, hosted.index(last) * size + 2 * shop.priced.heights[last])
    order = forwards[:warmup]
    for i, backward in enumerate(backwards):
        order += forwards[warmup + i : warmup + i + 1]
        order.append(backward)
    return order + forwards[warmup + len(backwards) :]


def take_turns(shop: Shop, stages: list[int], row: int, *, count: int, size: int) -> list[int]:
    """Rounds of `size` micro-batches, in each round stage after stage."""
    return [
        shop.number_of(stage, row, m)
        for first in range(0, count, size)
        for stage in stages
        for m in range(first, min(first + size, count))
    ]


def measure_round(priced: PricedStages) -> int:
    """Micro-batches of a round: the longest way between two stages of a device that follow one
    another, evened out over the rounds of the batch."""
    longest = 1
    for hosted in priced.stages_by_device:
        for a, b in pairwise(hosted):
            longest = max(longest, measure_path(priced, a, b))
    count = priced.num_micro_batches(0)
    num_rounds = max(1, count // longest)
    return -(-count // num_rounds)


def measure_path(priced: PricedStages, a: int, b: int) -> int:
    """The longest path between two stages in edges; 0 if there is none."""
    lengths = {a: 0}
    for stage in range(a + 1, b + 1):
        known = [lengths[p] for p in priced.predecessors[stage] if p in lengths]
        if known:
            lengths[stage] = 1 + max(known)
    return lengths.get(b, 0)


def untangle(shop: Shop, orders: Orders) -> Orders | None:
    """The orders with tasks taken as they become ready, earliest turn first; None if that fails."""
    whole = (False,) * len(shop.count_by_stage)
    rules = Rules(whole, shop.count_by_stage, follow_orders(shop, orders))
    found = dispatch_tasks(shop, rules, durations_for(shop, whole))
    return found.orders if found else None
