"""Max-load on wide graphs: annealing from several starts, and the dynamic program over its cuts.

Annealing finds which ops belong together where tensors are heavy; the dynamic program balances
parts exactly where work decides. So each start is annealed, then improved in corridors, and its
borders join a pool. Unions and intersections of the pool's borders are down-sets again: the dynamic
program over them finds the best mixture of all that is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from graphplan.partition.maxload.maxload import MaxLoad
from tools.maxload.anneal import Annealer
from tools.maxload.clock import IsLate
from tools.maxload.corridor import improve_chain, search_family
from tools.maxload.cover import Chain

NUM_STARTS = 24
"""Coolings, at most."""
HEATS = (1.0, 4.0, 0.3)
"""Temperatures at which they start, in turn."""
NUM_MOVES = 800_000
"""Of one cooling: about a quarter of a second."""
FEW_ROUNDS = 4
"""Rounds in corridors without a gain after each cooling."""
NUM_POOLED = 10
"""Best chains whose borders are mixed."""
MAX_MIXED = 6000
"""Down-sets of one mixture."""


def improve_widely(
    problem: MaxLoad,
    chain: Chain,
    *,
    num_starts: int = NUM_STARTS,
    seed: int = 0,
    is_late: IsLate = lambda: False,
) -> Chain:
    """A chain at least as good; deterministic unless the clock ends the search."""
    annealer = Annealer(problem)
    first = best = chain
    pool = [chain]
    for start in range(num_starts):
        if is_late():
            break
        heat = HEATS[start % len(HEATS)]
        origin = first if start % 2 == 0 else best
        found = annealer.run(
            origin,
            num_moves=NUM_MOVES,
            seed=seed * NUM_STARTS + start + 1,
            hot=heat,
        )
        found = improve_chain(
            problem, found, num_rounds=FEW_ROUNDS, seed=seed + start, is_late=is_late
        )
        pool = sorted({*pool, found}, key=lambda each: (each.value_s, each.downsets))[:NUM_POOLED]
        best = min(best, found, key=lambda each: each.value_s)
        mixed = search_family(problem, _mix_borders(pool), best.value_s, is_late)
        if mixed is not None and mixed.value_s < best.value_s:
            best = improve_chain(
                problem, mixed, num_rounds=FEW_ROUNDS, seed=seed + start, is_late=is_late
            )
            pool = [best, *pool[: NUM_POOLED - 1]]
    return best


def _mix_borders(pool: Iterable[Chain]) -> list[int]:
    """Borders of all chains, then unions and intersections of pairs of them."""
    borders = list(dict.fromkeys(each for chain in pool for each in chain.downsets))
    found = dict.fromkeys(borders)
    for a, b in itertools.combinations(borders, 2):
        if len(found) >= MAX_MIXED:
            break
        found[a | b] = None
        found[a & b] = None
    return list(found)
