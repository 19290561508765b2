"""Priorities of tasks for the list schedule: by kind and urgency, or after the order of others."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.schedule.shop import F, G, Orders, Shop, W

LEVELS: dict[str, tuple[int, int, int]] = {
    "GFW": (1, 2, 0),
    "FGW": (2, 1, 0),
    "GWF": (0, 2, 1),
    "WGF": (0, 1, 2),
    "any": (0, 0, 0),
}
"""By name, the levels of F, G and W; the name lists the kinds by falling level."""


def rank_priorities(shop: Shop, tails: Sequence[float], *, levels: str) -> list[float]:
    """Level first, then the longest way to the end."""
    step = 1.0 + max(tails, default=0.0)
    priorities = list(tails)
    for stage, count in enumerate(shop.count_by_stage):
        for row, level in zip((F, G, W), LEVELS[levels], strict=True):
            for m in range(count):
                priorities[shop.number_of(stage, row, m)] += level * step
    return priorities


def follow_orders(shop: Shop, orders: Orders) -> list[float]:
    """Earlier in the orders is more urgent; W's, which they lack, come last and in turn."""
    priorities = [0.0] * shop.num_tasks
    for order in orders:
        for position, task in enumerate(order):
            priorities[task] = -float(position)
            stage, row, m = shop.place_of(task)
            if row == G:
                priorities[shop.number_of(stage, W, m)] = -float(position + len(order))
    return priorities


def measure_tails(shop: Shop, durations: Sequence[float], *, split: Sequence[bool]) -> list[float]:
    """The longest path from the start of each task to the end, tasks of one kind in sequence."""
    tails = [0.0] * shop.num_tasks
    num = len(shop.count_by_stage)
    # Gradients end upstream: W's first, then G's from the sources down, then F's from the sinks up.
    for stage in range(num):
        if split[stage]:
            follow_row(shop, durations, tails, stage, W)
    for stage in range(num):
        follow_row(shop, durations, tails, stage, G)
    for stage in range(num - 1, -1, -1):
        follow_row(shop, durations, tails, stage, F)
    return tails


def follow_row(
    shop: Shop, durations: Sequence[float], tails: list[float], stage: int, row: int
) -> None:
    """Tails of one stage's tasks of one kind, last micro-batch first."""
    after = shop.closing_s(stage) if row != F else 0.0
    for m in range(shop.count_by_stage[stage] - 1, -1, -1):
        task = shop.number_of(stage, row, m)
        longest = max((tails[fed] + delay for fed, delay in shop.feeds_by_task[task]), default=0.0)
        after = durations[task] + max(after, longest)
        tails[task] = after
