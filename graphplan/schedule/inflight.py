"""In-flight samples of priced stages, by the rule of cost/inflight.py."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.cost import inflight
from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages


def count_in_flight(priced: PricedStages, *, units: Sequence[int]) -> tuple[int, ...]:
    """Samples in flight at every stage, each a multiple of the stage's unit (in samples)."""
    back = set(priced.backward_edges)
    returning = [[j for j in after if (x, j) in back] for x, after in enumerate(priced.successors)]
    return tuple(inflight.count_in_flight(units, returning, priced.successors))


def measure_units(priced: PricedStages, *, num_per_block: Sequence[int]) -> tuple[int, ...]:
    """Samples of a block of k micro-batches of every stage; a block must divide the batch."""
    units = []
    for stage, (price, k) in enumerate(zip(priced.stages, num_per_block, strict=True)):
        if k < 1 or priced.num_micro_batches(stage) % k:
            raise InvalidOption(
                f"Stage {stage} has {priced.num_micro_batches(stage)} micro-batches, which are not"
                f" whole blocks of {k}.",
                remedy="Choose k among the divisors of the number of micro-batches.",
            )
        units.append(k * price.micro_batch_size)
    return tuple(units)
