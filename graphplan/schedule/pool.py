"""The pool of a search: orders with their value, the best one on top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from graphplan.schedule.dispatch import Dispatched, Rules, dispatch_tasks
from graphplan.schedule.evaluate import (
    close_orders,
    durations_for,
    evaluate_orders,
    measure_peak,
    measure_span,
)
from graphplan.schedule.shop import G, Orders, Shop

Objective = Literal["makespan", "span"]
TOLERANCE = 1e-6
"""Relative difference below which two times are equal: sums of rounded seconds differ by less."""


@dataclass(frozen=True)
class Candidate:
    """Orders that run and fit, and the seconds that they take under the objective."""

    value_s: float
    orders: Orders
    split: tuple[bool, ...]
    name: str


@dataclass
class Pool:
    """The best candidate so far; stops asking for more when it meets the bound."""

    shop: Shop
    objective: Objective
    bound_s: float
    best: Candidate | None = None
    durations_by_split: dict[tuple[bool, ...], list[float]] = field(default_factory=dict)

    @property
    def is_optimal(self) -> bool:
        """Whether nothing better can exist."""
        return self.best is not None and self.best.value_s <= self.bound_s * (1 + TOLERANCE)

    def durations(self, split: tuple[bool, ...]) -> list[float]:
        """Seconds by task number, computed once for each choice of splits."""
        if split not in self.durations_by_split:
            self.durations_by_split[split] = durations_for(self.shop, split)
        return self.durations_by_split[split]

    def offer_rules(self, rules: Rules, *, name: str) -> float:
        """Dispatch and keep the orders if they are the best; infinity if they do not run."""
        found = dispatch_tasks(self.shop, rules, self.durations(rules.split))
        return self.offer_dispatched(found, rules.split, name=name)

    def offer_dispatched(
        self, found: Dispatched | None, split: tuple[bool, ...], *, name: str
    ) -> float:
        """Keep dispatched orders if they are the best; their value, infinity for none."""
        if found is None:
            return math.inf
        value = found.span_s if self.objective == "span" else found.makespan_s
        if self.best is None or value < self.best.value_s * (1 - TOLERANCE):
            self.offer(found.orders, split, name=name)
        return value

    def offer(self, orders: Orders, split: tuple[bool, ...], *, name: str) -> float | None:
        """Judge orders and keep them if they are the best; None if they do not run or fit."""
        if not fits_memory(self.shop, orders, split):
            return None
        durations = self.durations(split)
        closed = close_orders(self.shop, orders)
        run = evaluate_orders(self.shop, closed, durations)
        if run is None:
            return None
        span = self.objective == "span"
        value = measure_span(closed, run.ends, durations) if span else max(run.ends)
        if self.best is None or value < self.best.value_s * (1 - TOLERANCE):
            self.best = Candidate(value, orders, split, name)
        return value


def fits_memory(shop: Shop, orders: Sequence[Sequence[int]], split: tuple[bool, ...]) -> bool:
    """Whether every device has the memory for its order."""
    return measure_share(shop, orders, split) <= 1


def measure_share(shop: Shop, orders: Sequence[Sequence[int]], split: tuple[bool, ...]) -> float:
    """The largest share of a device's memory that is in use at any time."""
    shares = [0.0]
    for machine, order in enumerate(orders):
        pairs = frozenset(
            (stage, m) for stage, row, m in map(shop.place_of, order) if row == G and split[stage]
        )
        peak = measure_peak(shop, machine, order, split=pairs)
        memory = min(
            shop.priced.memory_bytes_by_device[d] for d in shop.devices_by_machine[machine]
        )
        shares.append(peak / memory if memory else math.inf if peak else 0.0)
    return max(shares)
