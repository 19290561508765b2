"""1F1B: one forward, one backward, with w_s = h(s) warm-up forwards (PipeDream-flush).

On a graph of stages h(s), the longest path to a sink, takes the place of S-1-s. With unit times and
free messages the makespan is 2N + 2(D-1) for depth D, and no smaller warm-ups reach it.
"""

from __future__ import annotations

from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.kfkb import order_blocks


def build_1f1b(priced: PricedStages) -> Schedule:
    """The static order; with unequal micro-batch sizes the in-flight samples are rounded up."""
    return order_blocks(priced, num_per_block=[1] * len(priced.stages), name="1f1b")
