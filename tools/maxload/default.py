"""The default for max-load: exact where the down-sets can be listed, else the best of all methods.

Ops that an optimal cut keeps together are contracted first. Then

1. a first cut from the prefixes of several orders, improved in corridors around its borders;
2. all down-sets, if there are not too many: rising targets until the optimum is proven;
3. else, or when time runs out, annealing and mixtures of its cuts (wide.py), more corridors, then
   CP-SAT, which starts from the best cut and works on the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from graphplan.errors import SearchLimit
from graphplan.partition.dag.downsets import enumerate_downsets
from graphplan.partition.ilp import solve_contracted as solve_program
from graphplan.partition.maxload.contract import contract_maxload
from graphplan.partition.maxload.loads import bound_load, explain_parts, make_parts_answer
from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer
from graphplan.partition.maxload.shrink import restore_answer, shrink_maxload
from tools.maxload.clock import IsLate
from tools.maxload.corridor import improve_chain
from tools.maxload.cover import Chain, Family
from tools.maxload.incumbent import find_incumbent
from tools.maxload.prove import SMALL, prove_optimum
from tools.maxload.wide import improve_widely

MAX_DOWNSETS = 300_000
MAX_OPS = 1200
"""Larger problems are folded first: the tables have an entry for each op."""
LEAST_PROGRAM_S = 3.0
"""With less time left, CP-SAT is not started: it proves little by then and ends late."""
LARGEST_PROGRAM = 12_000
"""Variables up to which CP-SAT may still help within seconds."""
FEW_ROUNDS, MANY_ROUNDS = 5, 300
"""Rounds in corridors without a gain: before the exact search, and in its place."""
LAST_SHARE = 0.9
"""Of the time limit, when CP-SAT has to end: it looks at the clock now and then only."""

Clock = Callable[[float], IsLate]
"""Whether so large a share of the time limit has passed."""


def solve_maxload(problem: MaxLoad, *, time_limit_s: float = 10.0, seed: int = 0) -> PartsAnswer:
    """The best cut within the time limit, with a bound; deterministic unless time runs out."""
    start = time.perf_counter()

    def clock(share: float) -> IsLate:
        return lambda: time.perf_counter() - start > share * time_limit_s

    exact, exact_groups = contract_maxload(problem)
    small, groups = shrink_maxload(exact, max_ops=MAX_OPS)
    answer = _solve_small(small, clock, start + LAST_SHARE * time_limit_s, seed)
    if len(groups) < exact.num_ops:
        note = f"folded to {len(groups)} ops"
        answer = restore_answer(exact, groups, answer, exact=False, note=note)
    return restore_answer(problem, exact_groups, answer)


def _solve_small(problem: MaxLoad, clock: Clock, end: float, seed: int) -> PartsAnswer:
    bound_s = bound_load(problem)
    chain = find_incumbent(problem, seed=seed)
    downsets = enumerate_downsets(problem.predecessors, problem.successors, limit=MAX_DOWNSETS)
    if downsets is not None:
        if chain is not None and len(downsets) > SMALL:
            chain = improve_chain(
                problem, chain, num_rounds=FEW_ROUNDS, seed=seed, is_late=clock(0.5)
            )
        proof = prove_optimum(
            Family(problem, downsets),
            problem.num_parts,
            known=chain,
            bound_s=bound_s,
            is_late=clock(0.7),
        )
        chain, bound_s = proof.chain, proof.bound_s
        if proof.proven:
            if chain is None:
                raise explain_parts(problem)
            note = f"{len(downsets):,} down-sets"
            return make_parts_answer(
                problem, chain.parts, solver="auto", bound_s=bound_s, proven=True, note=note
            )
    if chain is not None:
        chain = _improve(problem, chain, clock, seed)
    return _finish_with_program(problem, chain, bound_s, end, seed)


def _improve(problem: MaxLoad, chain: Chain, clock: Clock, seed: int) -> Chain:
    """A better cut, as far as there is time."""
    chain = improve_widely(problem, chain, seed=seed, is_late=clock(0.65))
    return improve_chain(problem, chain, num_rounds=MANY_ROUNDS, seed=seed, is_late=clock(0.85))


def _finish_with_program(
    problem: MaxLoad, chain: Chain | None, bound_s: float, end: float, seed: int
) -> PartsAnswer:
    """What is left of the time goes to CP-SAT; without a cut this is the last chance."""
    left_s = end - time.perf_counter()
    hint = chain.parts if chain is not None else None
    size = (problem.num_ops + len(problem.tensors)) * problem.num_parts
    if hint is not None and (left_s < LEAST_PROGRAM_S or size > LARGEST_PROGRAM):
        return make_parts_answer(problem, hint, solver="auto", bound_s=bound_s, proven=False)
    try:
        answer = solve_program(problem, effort=max(left_s, 0.2), seed=seed, hint=hint)
    except SearchLimit:
        if hint is None:
            raise
    else:
        bound_s = max(bound_s, answer.bound_s)
        return make_parts_answer(
            problem, answer.parts, solver="auto", bound_s=bound_s, proven=answer.proven
        )
    return make_parts_answer(problem, hint, solver="auto", bound_s=bound_s, proven=False)
