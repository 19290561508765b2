"""In-flight samples of a stage, from what is in flight right after it.

GraphPipe (arXiv 2406.17145), stages that alternate one forward and one backward of b samples: a
sink keeps b samples in flight, any other stage x

    i_x = max over successors j of (i_j + max(b_x, b_j)), rounded up to a multiple of b_x.

Two corrections, found by simulation. Where micro-batches shrink downstream (b_x > b_j) the rule
starves the successor up to a factor of two; b_x - b_j more samples mend it. And a round trip of
messages that takes as long as n cycles of the pipeline needs n more micro-batches in flight: memory
that is only worth paying where there is some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from graphplan.nouns.problem import Floats


def step_in_flight(size: int, after: Floats, sizes_after: Floats, *, extra: int = 0) -> Floats:
    """Samples in flight at a stage with micro-batches of `size`, for many possible successors.

    `after` and `sizes_after` are the successors' in-flight samples and micro-batch sizes, both 0
    for a stage without successor; `extra` is a number of micro-batches to cover latency.
    """
    slack = numpy.where(sizes_after > 0, numpy.maximum(size - sizes_after, 0), 0)
    need = after + numpy.maximum(size, sizes_after) + slack
    rounded: Floats = (numpy.ceil(need / size) + extra * (sizes_after > 0)) * size
    return rounded


def count_in_flight(sizes: Sequence[int], successors: Sequence[Sequence[int]]) -> list[int]:
    """Samples in flight at every stage of a graph whose edges point to higher numbers."""
    found = [0] * len(sizes)
    for stage in range(len(sizes) - 1, -1, -1):
        size = sizes[stage]
        need = [found[j] + max(size, sizes[j]) + max(0, size - sizes[j]) for j in successors[stage]]
        found[stage] = -(-max(need, default=size) // size) * size
    return found


def cover_latency(round_trip_s: float, cycle_s: float) -> int:
    """Micro-batches that keep a stage busy while messages travel to its successor and back."""
    return math.ceil(round_trip_s / cycle_s) if cycle_s > 0 else 0
