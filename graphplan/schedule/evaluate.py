"""Evaluation of an order: the longest path over task order, dependencies and messages.

The fast path of every search loop. Messages take their seconds and latency but never wait for one
another; the simulator also knows contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.shop import F, G, Orders, Shop, U, W, make_shop, number_tasks
from graphplan.schedule.updates import place_updates

FLUSH = WeightPolicy(name="flush")


class Run(NamedTuple):
    """When every task ends, and one order in which all tasks of all machines could run."""

    ends: list[float]
    """By task number; 0 for tasks that are not in the orders."""
    sequence: list[int]


@dataclass(frozen=True)
class Evaluation:
    """Times of a schedule and the most memory that each device needs."""

    step_s: float
    """Until the last update, with a barrier after the batch."""
    span_s: float
    """Longest time between a device's first start and last end: the period without a barrier."""
    peak_bytes_by_device: tuple[int, ...]
    fits: bool
    """Whether every device has the memory."""


def evaluate_schedule(
    priced: PricedStages, schedule: Schedule, policy: WeightPolicy = FLUSH
) -> Evaluation:
    """Evaluate one batch of a schedule with the updates of its policy."""
    shop = make_shop(priced)
    orders = close_orders(shop, number_tasks(shop, schedule), policy)
    durations = durations_of(shop, schedule)
    ends = run_schedule(shop, orders, durations, name=schedule.name).ends
    peaks = [0] * len(priced.memory_bytes_by_device)
    for machine, (devices, order) in enumerate(zip(shop.devices_by_machine, orders, strict=True)):
        split = split_pairs(schedule, devices[0])
        for device in devices:
            peaks[device] = measure_peak(shop, machine, order, split=split)
    return Evaluation(
        step_s=max(ends, default=0.0),
        span_s=measure_span(orders, ends, durations),
        peak_bytes_by_device=tuple(peaks),
        fits=all(p <= m for p, m in zip(peaks, priced.memory_bytes_by_device, strict=True)),
    )


def run_schedule(shop: Shop, orders: Orders, durations: Sequence[float], *, name: str) -> Run:
    """Run orders that must not deadlock."""
    run = evaluate_orders(shop, orders, durations)
    if run is None:
        raise InvalidOption(
            f"Schedule {name!r} deadlocks: its tasks wait for one another in a circle.",
            remedy="Use a schedule that graphplan built, for example 1f1b.",
        )
    return run


def evaluate_orders(
    shop: Shop, orders: Sequence[Sequence[int]], durations: Sequence[float]
) -> Run | None:
    """Start every task as early as its machine, its inputs and their messages allow.

    None if the orders deadlock.
    """
    ends = [-1.0] * shop.num_tasks
    arcs_by_task = shop.arcs_by_task
    positions, frees = [0] * len(orders), [0.0] * len(orders)
    waiting: dict[int, list[int]] = {}
    runnable = list(range(len(orders)))
    sequence: list[int] = []
    while runnable:
        machine = runnable.pop()
        order, position, free = orders[machine], positions[machine], frees[machine]
        while position < len(order):
            task, start = order[position], free
            for needed, delay in arcs_by_task[task]:
                end = ends[needed]
                if end < 0:
                    waiting.setdefault(needed, []).append(machine)
                    break
                if end + delay > start:
                    start = end + delay
            else:
                ends[task] = free = start + durations[task]
                position += 1
                sequence.append(task)
                if task in waiting:
                    runnable += waiting.pop(task)
                continue
            break
        positions[machine], frees[machine] = position, free
    if len(sequence) < sum(map(len, orders)):
        return None
    return Run([max(0.0, end) for end in ends], sequence)


def measure_span(orders: Orders, ends: Sequence[float], durations: Sequence[float]) -> float:
    """The longest time from a machine's first start to its last end."""
    spans = (ends[order[-1]] - (ends[order[0]] - durations[order[0]]) for order in orders if order)
    return max(spans, default=0.0)


def durations_for(shop: Shop, split: Sequence[bool]) -> list[float]:
    """Seconds by task number when these stages split their backward."""
    durations: list[float] = []
    for stage, price in enumerate(shop.priced.stages):
        backward = price.input_grad_s if split[stage] else price.backward_s
        for seconds in (price.forward_s, backward, price.weight_grad_s, shop.closing_s(stage)):
            durations += [seconds] * shop.count_by_stage[stage]
    return durations


def durations_of(shop: Shop, schedule: Schedule) -> list[float]:
    """Seconds by task number for a schedule that may mix B with I and W."""
    durations = durations_for(shop, [False] * len(shop.count_by_stage))
    for devices in shop.devices_by_machine:
        for task in schedule.tasks_by_device[devices[0]]:
            if task.kind == "I":
                number = shop.number_of(task.stage, G, task.micro_batch)
                durations[number] = shop.priced.stages[task.stage].input_grad_s
    return durations


def close_orders(
    shop: Shop, orders: Sequence[Sequence[int]], policy: WeightPolicy = FLUSH
) -> Orders:
    """The orders with the updates of their stages, where these take time."""
    if not any(map(shop.closing_s, range(len(shop.count_by_stage)))):
        return [list(order) for order in orders]
    closed: Orders = []
    for order in orders:
        updates = place_updates(shop, order, policy)
        line: list[int] = []
        for position, number in enumerate(order):
            line.append(number)
            line += [shop.number_of(stage, U, m) for stage, m in updates.get(position, ())]
        closed.append(line)
    return closed


def split_pairs(schedule: Schedule, device: int) -> frozenset[tuple[int, int]]:
    """The (stage, micro-batch) pairs whose backward a device runs as I and W."""
    return frozenset(
        (task.stage, task.micro_batch)
        for task in schedule.tasks_by_device[device]
        if task.kind == "I"
    )


def measure_peak(
    shop: Shop, machine: int, order: Sequence[int], *, split: frozenset[tuple[int, int]]
) -> int:
    """The most bytes in use while one machine runs its order, fixed bytes included.

    This is the memory rule of `PricedStages`: F adds the saved bytes when it starts, B and W free
    at their end, I keeps the part that W needs.
    """
    stages = shop.priced.stages
    live = sum(stages[s].fixed_bytes for s in shop.stages_by_machine[machine])
    peak = live
    for number in order:
        stage, row, micro_batch = shop.place_of(number)
        price = stages[stage]
        saved = price.saved_bytes if price.needs_backward else 0
        if row == F:
            live += saved
        peak = max(peak, live + price.workspace_bytes)
        if row == G:
            kept = price.saved_for_weights_bytes if (stage, micro_batch) in split else 0
            live -= saved - kept
        elif row == W:
            live -= price.saved_for_weights_bytes
    return peak
