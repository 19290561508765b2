"""Proving a max-load optimum: targets rise from the bound to the best value known.

Each run of the dynamic program either finds the optimum or raises the bound to its target. Low
targets are cheap, as few down-sets can lie on a chain within them; so most of the work is done only
when it is needed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from graphplan.errors import NoFeasiblePlan
from graphplan.nouns.maxload import MaxLoad
from graphplan.partition.maxload.cover import Chain, Engine, Family, IsLate, OutOfTime, find_chain

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
    engine: Engine = "auto",
) -> Proof:
    """Search the family for something better than the known chain, until the clock stops it.

    The proof holds for all cuts if the family holds all down-sets.
    """
    best_s = math.inf if known is None else known.value_s
    steps = STEPS if len(family.downsets) > SMALL else ()
    for target_s in _list_targets(bound_s, best_s, steps):
        try:
            found = find_chain(family, num_parts, target_s, is_late=is_late, engine=engine)
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


def explain_parts(problem: MaxLoad) -> NoFeasiblePlan:
    """The error for a max-load problem that no cut within memory solves."""
    limit = problem.memory_bytes or 0
    total = sum(op.bytes for op in problem.ops)
    largest = max(problem.ops, key=lambda op: op.bytes)
    if largest.bytes > limit:
        return NoFeasiblePlan(
            f"The op {largest.name!r} needs {largest.bytes:,} bytes, a device has {limit:,}.",
            remedy=f"Use devices with at least {largest.bytes:,} bytes.",
        )
    least = -(-total // limit)
    return NoFeasiblePlan(
        f"{problem.num_parts} devices of {limit:,} bytes cannot hold {problem.name!r}, which needs"
        f" {total:,} bytes, in a cut along its edges.",
        remedy=f"Use {max(least, problem.num_parts + 1)} devices or more.",
    )
