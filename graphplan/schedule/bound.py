"""A lower bound on the step time of any schedule of these stages.

For a stage s of M micro-batches, alone or not on its devices (methods: one-machine relaxation):

    head                                                                      tail
    |----| F F F .. idle1 .. | G F G F ... G F | .. idle2 .. G G |------------|
         F[0] ends, R until G[0] may start       F[M-1] ends, R until G[M-1] may start

head: earliest start of the first F. tail: from the last gradient to the end of all upstream work.
R: round trip from the end of F[m] through all successors to the earliest start of G[m]. With at
most K micro-batches in flight the device can fill the first window with K-1 forwards, as fast as
upstream stages deliver them, and the second one with K-1 backwards, as fast as upstream stages can
take them (and with the W's that memory lets it put off); the rest of R is idle. For M > K the
windows do not overlap and both count. A full house of K also forces round trips one after another:
F[m] -> G[m] -> F[m+K].

G is the backward B, or its input half I where a split is allowed: then the bound takes whichever of
the two is shorter, so that it holds for schedules that mix both. Devices with several stages add
the bound head + all work + tail over groups of their stages. Contention is not counted. For each
transfer the least loaded receiver counts, as replicas need not wait for one another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphplan.errors import NoFeasiblePlan
from graphplan.nouns.prices import PricedStages, TransferPrice
from graphplan.play.script import Floats
from graphplan.schedule.shop import Shop, covering, make_shop


@dataclass(frozen=True)
class LowerBound:
    """What no schedule can beat."""

    makespan_s: float
    span_s: float


@dataclass(frozen=True)
class StageTerms:
    """The terms of one stage's bound, in seconds; counts are micro-batches."""

    count: int
    forward_s: float
    gradient_s: float
    """Least time from the start of a backward to its gradient."""
    rest_s: float
    """Least time that a backward takes beyond that."""
    head_s: float
    round_trip_s: float
    upstream_s: float
    """From the end of the last gradient to the end of all that must follow it."""
    closing_s: float
    """Reduction and update."""
    in_flight: int
    put_off: int
    """Micro-batches whose W can wait while one more is in flight."""
    first_fill_s: float
    """Most forward work in the window before the first gradient."""
    gradient_fill_s: float
    """Most gradient work in the window before the last gradient."""
    fill_s: float
    """Most backward work of any kind in that window, if backwards may be split."""
    whole: bool
    """Whether no backward is split, so that upstream work follows the stage's last task."""

    @property
    def load_s(self) -> float:
        """All work of the stage, its update left out."""
        return self.count * (self.forward_s + self.gradient_s + self.rest_s)

    @property
    def tail_s(self) -> float:
        """From the end of the stage's last task, its update included, to the end of all."""
        return max(0.0, self.upstream_s - self.closing_s) if self.whole else 0.0


def bound_schedule(priced: PricedStages, *, allow_split: bool = True) -> LowerBound:
    """The larger of the stages' and the devices' bounds; `NoFeasiblePlan` if one cannot run."""
    shop = make_shop(priced)
    return bound_terms(shop, measure_terms(shop, allow_split=allow_split))


def bound_terms(shop: Shop, terms: list[StageTerms]) -> LowerBound:
    """The same from the terms of all stages."""
    makespan = max(bound_stage(each, barrier=True) for each in terms)
    span = max(bound_stage(each, barrier=False) for each in terms)
    for stages in shop.stages_by_machine:
        hosted = [terms[s] for s in stages]
        makespan = max(makespan, bound_machine(hosted))
        span = max(span, sum(each.load_s + each.closing_s for each in hosted))
    return LowerBound(makespan_s=makespan, span_s=span)


def bound_stage(terms: StageTerms, *, barrier: bool) -> float:
    """The best bound over the number of round trips that a full house forces."""
    best = 0.0
    trip = terms.forward_s + terms.round_trip_s + terms.gradient_s
    for num_trips in range(-(-terms.count // terms.in_flight)):
        started = num_trips * trip + (terms.head_s if barrier else 0.0)
        best = max(best, started + bound_rest(terms, num_trips=num_trips, barrier=barrier))
    return best


def bound_rest(terms: StageTerms, *, num_trips: int, barrier: bool) -> float:
    """Time from the start of F[m], m = num_trips * K, until all is done."""
    count = terms.count - num_trips * terms.in_flight
    others = min(count, terms.in_flight) - 1
    first_fill, last_fill = others * terms.forward_s, others * terms.gradient_s
    if barrier:  # without one, a device may start late and find all its inputs waiting
        first_fill = min(first_fill, terms.first_fill_s)
        last_fill = min(last_fill, terms.gradient_fill_s)
    first = 0.0
    if num_trips == 0:  # later on, backwards fill the window as well
        first = max(0.0, terms.round_trip_s - first_fill)
    second = max(0.0, terms.round_trip_s - (last_fill if terms.whole else terms.fill_s))
    apart = count > terms.in_flight
    work = count * (terms.forward_s + terms.gradient_s)
    idle = first + second if apart else max(first, second)
    all_work = work + count * terms.rest_s + idle + terms.closing_s
    if not barrier:
        return all_work
    done = max(0, count - 1 - terms.put_off) * terms.rest_s
    short = terms.round_trip_s - last_fill
    wait = first + max(done, short) if apart else max(first + done, short)
    return max(all_work, work + wait + terms.upstream_s)


def bound_machine(hosted: list[StageTerms]) -> float:
    """Least head, all work and least tail over groups of a device's stages."""
    best = 0.0
    for head in {each.head_s for each in hosted}:
        for tail in {each.tail_s for each in hosted}:
            group = [each for each in hosted if each.head_s >= head and each.tail_s >= tail]
            if group:
                best = max(best, head + sum(e.load_s + e.closing_s for e in group) + tail)
    return best


def measure_terms(shop: Shop, *, allow_split: bool) -> list[StageTerms]:
    """The terms of every stage."""
    priced = shop.priced
    num = len(priced.stages)
    least = measure_least(shop)
    gradient, rest = measure_backward(priced, allow_split=allow_split)
    heads = measure_heads(shop, least)
    tails = measure_tails(shop, least, gradient, rest)
    trips = measure_trips(shop, least, gradient)
    terms = []
    for s in range(num):
        forward, house = priced.stages[s].forward_s, count_house(shop, s)
        starts = [head - heads[s][0] for head in heads[s][1:house]]
        ends = [tail - tails[s][-1] - gradient[s] for tail in tails[s][-2 : -house - 1 : -1]]
        terms.append(
            StageTerms(
                count=shop.count_by_stage[s],
                forward_s=forward,
                gradient_s=gradient[s],
                rest_s=rest[s],
                head_s=heads[s][0],
                round_trip_s=trips[s],
                upstream_s=tails[s][-1],
                closing_s=shop.closing_s(s),
                in_flight=house,
                put_off=count_put_off(shop, s, allow_split=allow_split),
                first_fill_s=fill_window(trips[s], [t - forward for t in starts], forward),
                gradient_fill_s=fill_window(trips[s], ends, gradient[s]),
                fill_s=measure_fill(shop, s),
                whole=not allow_split,
            )
        )
    return terms


def fill_window(window_s: float, ready: list[float], seconds: float) -> float:
    """Most work of equal tasks, ready at these times, within a window that opens at 0."""
    busy, free = 0.0, 0.0
    for at in ready:
        start = max(free, at)
        if start >= window_s:
            break
        free = start + seconds
        busy += min(free, window_s) - start
    return busy


def measure_heads(shop: Shop, least: dict[tuple[int, int], float]) -> list[list[float]]:
    """By stage and micro-batch, the earliest start of F if devices ran forwards only."""
    priced = shop.priced
    heads: list[list[float]] = []
    for s, count in enumerate(shop.count_by_stage):
        row: list[float] = []
        for m in range(count):
            head = row[-1] + priced.stages[s].forward_s if row else 0.0
            for p in priced.predecessors[s]:
                last = covering(priced, s, m, p)[-1]
                head = max(head, heads[p][last] + priced.stages[p].forward_s + least[p, s])
            row.append(head)
        heads.append(row)
    return heads


def measure_tails(
    shop: Shop, least: dict[tuple[int, int], float], gradient: list[float], rest: list[float]
) -> list[list[float]]:
    """By stage and micro-batch, the least time from the end of G to the end of all, if devices ran
    backwards only."""
    priced = shop.priced
    tails: list[list[float]] = []
    for s, count in enumerate(shop.count_by_stage):
        row: list[float] = [0.0] * count
        after = shop.closing_s(s) + rest[s]
        for m in range(count - 1, -1, -1):
            row[m] = after
            for p in shop.gradient_readers[s]:
                first = covering(priced, s, m, p)[0]
                row[m] = max(row[m], least[s, p] + gradient[p] + tails[p][first])
            after = row[m] + gradient[s]
        tails.append(row)
    return tails


def measure_trips(
    shop: Shop, least: dict[tuple[int, int], float], gradient: list[float]
) -> list[float]:
    """By stage, the least time from the end of F to the start of G of the same micro-batch."""
    priced = shop.priced
    trips = [0.0] * len(priced.stages)
    for s, d in sorted(priced.backward_edges, reverse=True):
        share = len(covering(priced, s, 0, d))
        there = least[s, d] + share * priced.stages[d].forward_s
        trips[s] = max(trips[s], there + trips[d] + gradient[d] + least[d, s])
    return trips


def measure_least(shop: Shop) -> dict[tuple[int, int], float]:
    """By the ends of a transfer: `least_delay`."""
    known = shop.priced.transfer_by_ends
    return {ends: least_delay(known.get(ends)) for ends in shop.delay_by_ends}


def least_delay(transfer: TransferPrice | None) -> float:
    """Seconds until the first of the receiving devices may have all that it needs."""
    latest: dict[int, float] = {}
    for message in transfer.messages if transfer else ():
        arrival = message.seconds + message.latency_s
        latest[message.dst] = max(latest.get(message.dst, 0.0), arrival)
    return min(latest.values(), default=0.0)


def measure_backward(priced: PricedStages, *, allow_split: bool) -> tuple[list[float], list[float]]:
    """By stage, the least time to the gradient and the least time that is left after it."""
    gradient, rest = [], []
    for price in priced.stages:
        whole = price.backward_s if price.needs_backward else 0.0
        first, both = whole, whole
        if allow_split and price.needs_backward:
            first = min(whole, price.input_grad_s)
            both = min(whole, price.input_grad_s + price.weight_grad_s)
        gradient.append(first)
        rest.append(both - first)
    return gradient, rest


def free_room(shop: Shop, stage: int) -> int:
    """Bytes for activations while a task of the stage runs on an otherwise empty device."""
    room = shop.room_by_machine[shop.machine_by_stage[stage]]
    price = shop.priced.stages[stage]
    free = room - price.workspace_bytes
    if free < (price.saved_bytes if price.needs_backward else 0):
        devices = shop.devices_by_machine[shop.machine_by_stage[stage]]
        raise NoFeasiblePlan(
            f"Stage {stage} needs {price.saved_bytes + price.workspace_bytes:,} bytes for one"
            f" micro-batch; device {devices[0]} has {max(0, room):,} left.",
            remedy="Use smaller micro-batches, recompute activations, or cut more stages.",
        )
    return free


def count_house(shop: Shop, stage: int) -> int:
    """Most micro-batches between F and the end of B or I that fit."""
    price, count = shop.priced.stages[stage], shop.count_by_stage[stage]
    free = free_room(shop, stage)
    if not price.needs_backward or not price.saved_bytes:
        return count
    return min(count, free // price.saved_bytes)


def count_put_off(shop: Shop, stage: int, *, allow_split: bool) -> int:
    """Most micro-batches between I and W that fit beside one that has not run I."""
    price, count = shop.priced.stages[stage], shop.count_by_stage[stage]
    if not allow_split or not price.needs_backward:
        return 0
    if not price.saved_for_weights_bytes:
        return count
    return min(count, (free_room(shop, stage) - price.saved_bytes) // price.saved_for_weights_bytes)


def measure_fill(shop: Shop, stage: int) -> float:
    """Most backward work left, besides its own, when the last forward of a stage ends."""
    price, count = shop.priced.stages[stage], shop.count_by_stage[stage]
    if not price.needs_backward:
        return 0.0
    each = max(price.backward_s, price.input_grad_s + price.weight_grad_s)
    in_flight = np.arange(1, count_house(shop, stage) + 1)
    waiting = count - in_flight
    if price.saved_for_weights_bytes:
        free = free_room(shop, stage) - in_flight * price.saved_bytes
        waiting = np.minimum(waiting, free // price.saved_for_weights_bytes)
    fill: Floats = (in_flight - 1) * each + waiting * price.weight_grad_s
    return float(fill.max(initial=0.0))
