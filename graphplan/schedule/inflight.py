"""In-flight samples of every stage: how many forwards run ahead of the backwards.

GraphPipe (arXiv 2406.17145): a stage x that alternates k_x forwards and k_x backwards of b_x
samples works in units u_x = k_x b_x. A sink keeps one unit in flight; any other stage

    i_x = max over successors j of ceil to a multiple of u_x of (i_j + max(u_x, u_j)).

Where units shrink downstream (u_x > u_j) this starves the successor, so that u_x - u_j more are
added. A successor that sends no gradient back only needs to be fed: i_x >= i_j. With equal units
i_x / u_x = h(s) + 1, the fewest with which free communication is never waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages


def count_in_flight(priced: PricedStages, *, units: Sequence[int]) -> tuple[int, ...]:
    """Samples in flight at every stage, each a multiple of the stage's unit (in samples)."""
    with_gradient = set(priced.backward_edges)
    samples = [0] * len(priced.stages)
    for x in range(len(priced.stages) - 1, -1, -1):
        need = units[x]
        for j in priced.successors[x]:
            if (x, j) in with_gradient:
                slack = max(0, units[x] - units[j])
                need = max(need, samples[j] + max(units[x], units[j]) + slack)
            else:
                need = max(need, samples[j])
        samples[x] = -(-need // units[x]) * units[x]
    return tuple(samples)


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
