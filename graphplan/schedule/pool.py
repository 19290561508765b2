"""The pool of a search: orders with their value, the best one on top.

The value of orders is what their program takes when it is played. A message that never waits for
another is never late: orders whose time with delays alone (dispatch.py) is no better than the best
value need not be played at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from graphplan.play.script import Ints
from graphplan.schedule.dispatch import (
    Followed,
    Rules,
    dispatch_tasks,
    follow_orders,
    measure_peaks,
)
from graphplan.schedule.evaluate import measure_span
from graphplan.schedule.lower import play_orders
from graphplan.schedule.shop import Orders, Shop

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

    @property
    def is_optimal(self) -> bool:
        """Whether nothing better can exist."""
        return self.best is not None and self.best.value_s <= self.bound_s * (1 + TOLERANCE)

    def offer_rules(self, rules: Rules, *, name: str) -> float:
        """Dispatch and keep the orders if they are the best; infinity if they do not run."""
        return self.offer_dispatched(dispatch_tasks(self.shop, rules), rules.split, name=name)

    def offer_dispatched(
        self, found: Followed | None, split: tuple[bool, ...], *, name: str
    ) -> float:
        """Keep dispatched orders, which fit, if they are the best; their time with delays alone,
        infinity for none."""
        if found is None:
            return math.inf
        value = found.span_s if self.objective == "span" else found.makespan_s
        if self._may_win(value):
            again = follow_orders(self.shop, found.orders, self.shop.kinds_for(split))
            assert again is not None
            self._offer_followed(again, split, name=name)
        return value

    def offer(self, orders: Orders, split: tuple[bool, ...], *, name: str) -> float | None:
        """Play orders and keep them if they are the best; None if they do not run or fit."""
        if not fits_memory(self.shop, orders, self.shop.kinds_for(split)):
            return None
        followed = follow_orders(self.shop, orders, self.shop.kinds_for(split))
        return None if followed is None else self._offer_followed(followed, split, name=name)

    def play(self, followed: Followed, split: tuple[bool, ...]) -> float:
        """The value of orders."""
        script, times = play_orders(self.shop, followed, self.shop.kinds_for(split))
        return measure_span(script, times) if self.objective == "span" else times.makespan_s

    def _may_win(self, value_s: float) -> bool:
        return self.best is None or value_s < self.best.value_s * (1 - TOLERANCE)

    def _offer_followed(self, followed: Followed, split: tuple[bool, ...], *, name: str) -> float:
        value = self.play(followed, split)
        if self._may_win(value):
            self.best = Candidate(value, followed.orders, split, name)
        return value


def fits_memory(shop: Shop, orders: Orders, kinds: Ints) -> bool:
    """Whether every device has the memory for its order."""
    return measure_share(shop, orders, kinds) <= 1


def measure_share(shop: Shop, orders: Orders, kinds: Ints) -> float:
    """The largest share of a device's memory that is in use at any time."""
    memory = np.array([memory_of(shop, m) for m in range(len(shop.devices_by_machine))])
    peaks = measure_peaks(shop, orders, kinds)
    if np.any((memory == 0) & (peaks > 0)):
        return math.inf
    return float((peaks / np.maximum(1, memory)).max(initial=0.0))


def memory_of(shop: Shop, machine: int) -> int:
    """Bytes of the smallest device of a machine."""
    return min(shop.priced.memory_bytes_by_device[d] for d in shop.devices_by_machine[machine])
