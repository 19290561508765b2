"""Closing: what reduction and update after the last backward take, straight in the weights.

The reduction is that over the first so many devices of the cluster; a search uses this before it
knows which devices a stage gets.
"""

from __future__ import annotations

import dataclasses

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.model import CostModel

SMALL, LARGE = 1_000_000, 1_001_000_000
"""Elements between which the straight line is drawn."""


@dataclasses.dataclass(frozen=True)
class Closing:
    """Seconds of the end of a step, for a stage with trained weights."""

    start_s: float
    seconds_per_element: float


def measure_closing(cost: CostModel, num_replicas: int) -> Closing:
    """The line through two amounts of weights."""
    small, large = (_close(cost, num_replicas, elements) for elements in (SMALL, LARGE))
    slope = (large - small) / (LARGE - SMALL)
    return Closing(max(0.0, small - slope * SMALL), slope)


def _close(cost: CostModel, num_replicas: int, elements: int) -> float:
    problem = cost.problem
    update_s = max(cost.update_time(kind, elements) for kind in problem.cluster.types)
    num_bytes = elements * problem.element_bytes
    return update_s + allreduce_time(problem.cluster, range(num_replicas), num_bytes)
