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

import numpy as np

from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.play.script import Floats, Ints, point_rows
from graphplan.schedule.dispatch import Rules, dispatch_tasks, follow_orders
from graphplan.schedule.pool import fits_memory
from graphplan.schedule.shop import G, Orders, Shop, make_shop, name_tasks


def build_interleaved(priced: PricedStages) -> Schedule:
    """The interleaved order of stages with micro-batches of one size."""
    if len({stage.micro_batch_size for stage in priced.stages}) > 1:
        raise InvalidOption(
            "Schedule interleaved wants micro-batches of one size at every stage.",
            remedy="Choose one micro-batch size, or schedule gpipe, list or auto.",
        )
    shop = make_shop(priced)
    kinds = shop.kinds_for([False] * len(priced.stages))
    orders = order_turns(shop)
    if not fits_memory(shop, orders, kinds) or follow_orders(shop, orders, kinds) is None:
        orders = untangle(shop) or orders
    return name_tasks(shop, orders, kinds, name="interleaved")


def order_turns(shop: Shop) -> Orders:
    """The static orders of all machines, which need not fit or even run."""
    place = place_turns(shop)
    tasks = np.flatnonzero(place >= 0)
    machine = shop.machine_of[tasks]
    tasks = tasks[np.lexsort((place[tasks], machine))]
    return Orders(point_rows(len(shop.devices_by_machine), machine), tasks)


def rank_turns(shop: Shop) -> Floats:
    """Priorities by these orders; W's, which they lack, come last and in turn."""
    place = place_turns(shop)
    gradients = np.flatnonzero((shop.row_of == G) & (place >= 0))
    weights = gradients + shop.count[shop.stage_of[gradients]]
    place[weights] = place[gradients] + len(place)
    return -place.astype(np.float64)


def place_turns(shop: Shop) -> Ints:
    """By task: its place in the order of its machine, -1 for W and U.

    Forwards take turns, i = 0 1 2 .., and so do backwards, j = 0 1 2 ..; the first `warmup`
    forwards run alone, then one forward and one backward in turn, then what is left of either.
    """
    count, size = shop.count_by_stage[0], measure_round(shop.priced)
    turns = np.array([_find_turn(shop, s, size) for s in range(len(shop.count))], dtype=np.int64)
    nth, num, nth_back, num_back, warmup = turns.T[:, :, None]
    micro_batch = np.arange(count)
    start = micro_batch // size * size
    length = np.minimum(size, count - start)
    i = start * num + nth * length + micro_batch - start
    j = start * num_back + nth_back * length + micro_batch - start
    rest = num * count - warmup
    pairs = np.minimum(rest, num_back * count)
    forward = np.where(i < warmup + pairs, np.maximum(i, 2 * i - warmup), i + num_back * count)
    backward = np.where(j < pairs, warmup + 2 * j + 1, warmup + rest + j)
    backward = np.where(nth_back < 0, -1, backward)
    none = np.full_like(backward, -1)
    return np.stack((forward, backward, none, none), axis=1).ravel()


def _find_turn(shop: Shop, stage: int, size: int) -> tuple[int, int, int, int, int]:
    """Place and number of a stage among its machine's forwards, among its backwards, warm-up."""
    hosted = shop.stages_by_machine[shop.machine_by_stage[stage]]
    training = [s for s in hosted[::-1] if shop.priced.stages[s].needs_backward]
    warmup = len(hosted) * shop.count_by_stage[0]
    if training:
        last = training[0]
        warmup = min(warmup, hosted.index(last) * size + 2 * shop.priced.heights[last])
    back = training.index(stage) if stage in training else -1
    return hosted.index(stage), len(hosted), back, len(training), warmup


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


def untangle(shop: Shop) -> Orders | None:
    """The orders with tasks taken as they become ready, earliest turn first; None if that fails."""
    whole = (False,) * len(shop.count_by_stage)
    rules = Rules(whole, shop.count_by_stage, rank_turns(shop))
    found = dispatch_tasks(shop, rules)
    return found.orders if found else None
