"""Proving a max-load optimum: targets rise from the bound to the best value known.

Each run of the dynamic program either finds the optimum or raises the bound to its target. Low
targets are cheap, as few down-sets can lie on a chain within them; so most of the work is done only
when it is needed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from tools.maxload.clock import IsLate, OutOfTime, find_in_time
from tools.maxload.cover import Chain, Family

STEPS = (1 / 32, 1 / 8, 1 / 2)
"""Where between bound and best value the targets lie; the last one is the best value itself."""
SMALL = 4000
"""Down-sets up to which the best value is the only target."""
GROWTH = (1.05, 1.3, 2.0, 4.0)
"""Targets over the bound when no value is known; the last one is infinity."""
NO_BETTER = 1 - 1e-9
"""Values that differ by less count as equal."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """The best chain known, a bound, and whether they meet."""

    chain: Chain | None
    bound_s: float
    proven: bool


def prove_optimum(
    family: Family,
    num_parts: int,
    *,
    known: Chain | None,
    bound_s: float,
    is_late: IsLate = lambda: False,
) -> Proof:
    """Search the family for something better than the known chain, until the clock stops it.

    The proof holds for all cuts if the family holds all down-sets.
    """
    best_s = math.inf if known is None else known.value_s
    steps = STEPS if len(family.downsets) > SMALL else ()
    for target_s in _list_targets(bound_s, best_s, steps):
        try:
            found = find_in_time(family, num_parts, target_s, is_late)
        except OutOfTime:
            return Proof(known, bound_s, proven=False)
        if found is not None:
            return Proof(found, found.value_s, proven=True)
        bound_s = target_s
    return Proof(known, bound_s if known is None else known.value_s, proven=True)


def _list_targets(bound_s: float, best_s: float, steps: Sequence[float]) -> Iterator[float]:
    if best_s == math.inf:
        yield from (bound_s * factor for factor in GROWTH if bound_s > 0)
        yield math.inf
        return
    for step in steps:
        if bound_s + step * (best_s - bound_s) < best_s * NO_BETTER:
            yield bound_s + step * (best_s - bound_s)
    yield best_s * NO_BETTER
