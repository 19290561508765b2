"""Priorities of tasks for the list schedule: by kind and urgency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphplan.jit import compile_loop
from graphplan.play.script import Floats, Ints
from graphplan.schedule.shop import F, G, Shop, W

LEVELS: dict[str, tuple[int, int, int]] = {
    "GFW": (1, 2, 0),
    "FGW": (2, 1, 0),
    "GWF": (0, 2, 1),
    "WGF": (0, 1, 2),
    "any": (0, 0, 0),
}
"""By name, the levels of F, G and W; the name lists the kinds by falling level."""


def rank_priorities(shop: Shop, tails: Floats, *, levels: str) -> Floats:
    """Level first, then the longest way to the end."""
    step = 1.0 + float(tails.max(initial=0.0))
    ranked: Floats = tails + np.array([*LEVELS[levels], 0])[shop.row_of] * step
    return ranked


def measure_tails(shop: Shop, durations: Floats, *, split: Sequence[bool]) -> Floats:
    """The longest path from the start of each task to the end, tasks of one kind in sequence."""
    num = len(shop.count_by_stage)
    # Gradients end upstream: W's first, then G's from the sources down, then F's from the sinks up.
    rows = [(stage, W) for stage in range(num) if split[stage]]
    rows += [(stage, G) for stage in range(num)]
    rows += [(stage, F) for stage in range(num - 1, -1, -1)]
    tails = np.zeros(shop.num_tasks)
    tables = (shop.first, shop.count, shop.closing, durations)
    feeds = shop.feeds
    _trace_tails(np.array(rows), tables, (feeds.first, feeds.reader, feeds.delay_s), tails)
    return tails


@compile_loop
def _trace_tails(
    rows: Ints,
    tables: tuple[Ints, Ints, Floats, Floats],
    feeds: tuple[Ints, Ints, Floats],
    tails: Floats,
) -> None:
    """Tails of the tasks of these stages and kinds, row by row, last micro-batch first."""
    first, count, closing, durations = tables
    feed_first, reader, delay_s = feeds
    for at in range(len(rows)):
        stage, row = rows[at, 0], rows[at, 1]
        after = closing[stage] if row != 0 else 0.0
        start = first[stage] + row * count[stage]
        for task in range(start + count[stage] - 1, start - 1, -1):
            for feed in range(feed_first[task], feed_first[task + 1]):
                after = max(after, tails[reader[feed]] + delay_s[feed])
            after += durations[task]
            tails[task] = after
