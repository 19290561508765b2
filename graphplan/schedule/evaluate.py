"""Evaluation of a schedule: the time and the memory of its program, as the simulator has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.play.script import Floats, Ints, Script, Times
from graphplan.schedule.dispatch import FLUSH, follow_orders, measure_peaks
from graphplan.schedule.lower import play_orders, refuse_deadlock
from graphplan.schedule.shop import make_shop, number_tasks


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
    """Play one batch of a schedule with the updates of its policy."""
    shop = make_shop(priced)
    orders, kinds = number_tasks(shop, schedule)
    followed = follow_orders(shop, orders, kinds, policy=policy)
    if followed is None:
        raise refuse_deadlock(schedule.name)
    script, times = play_orders(shop, followed, kinds, policy)
    peaks = spread_peaks(priced, shop.devices_by_machine, measure_peaks(shop, orders, kinds))
    return Evaluation(
        step_s=times.makespan_s,
        span_s=measure_span(script, times),
        peak_bytes_by_device=peaks,
        fits=all(p <= m for p, m in zip(peaks, priced.memory_bytes_by_device, strict=True)),
    )


def measure_span(script: Script, times: Times) -> float:
    """The longest time from a device's first start to its last end."""
    busy = np.flatnonzero(np.diff(script.line_first))
    ends: Floats = times.task_end[script.line_first[busy + 1] - 1]
    return float((ends - times.task_start[script.line_first[busy]]).max(initial=0.0))


def spread_peaks(
    priced: PricedStages, devices_by_machine: tuple[tuple[int, ...], ...], peaks: Ints
) -> tuple[int, ...]:
    """The peaks of all devices from those of their machines."""
    found = [0] * len(priced.memory_bytes_by_device)
    for devices, peak in zip(devices_by_machine, peaks.tolist(), strict=True):
        for device in devices:
            found[device] = peak
    return tuple(found)
