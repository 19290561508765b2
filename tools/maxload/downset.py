"""The optimum of max-load over all chains of down-sets (Tarnawski et al., NeurIPS 2020)."""

from __future__ import annotations

import time

from graphplan.errors import SearchLimit
from graphplan.partition.dag.downsets import enumerate_downsets
from graphplan.partition.maxload.contract import contract_maxload
from graphplan.partition.maxload.loads import bound_load, explain_parts, make_parts_answer
from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer
from graphplan.partition.maxload.shrink import restore_answer
from tools.maxload.corridor import improve_chain
from tools.maxload.cover import Family
from tools.maxload.incumbent import find_incumbent
from tools.maxload.prove import SMALL, prove_optimum

MAX_DOWNSETS = 400_000
FEW_ROUNDS = 5
"""Rounds in corridors without a gain before the exact search starts."""


def solve_maxload(
    problem: MaxLoad,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    max_downsets: int = MAX_DOWNSETS,
) -> PartsAnswer:
    """The optimum, or the best cut and bound when time runs out."""
    small, groups = contract_maxload(problem)
    answer = _solve_contracted(small, time_limit_s, seed, max_downsets)
    return restore_answer(problem, groups, answer)


def _solve_contracted(
    problem: MaxLoad, time_limit_s: float, seed: int, max_downsets: int
) -> PartsAnswer:
    start = time.perf_counter()

    def is_late() -> bool:
        return time.perf_counter() - start > time_limit_s

    downsets = enumerate_downsets(problem.predecessors, problem.successors, limit=max_downsets)
    if downsets is None:
        raise too_many_downsets(problem.name, max_downsets)
    known = find_incumbent(problem, seed=seed)
    if known is not None and len(downsets) > SMALL:
        known = improve_chain(problem, known, num_rounds=FEW_ROUNDS, seed=seed, is_late=is_late)
    proof = prove_optimum(
        Family(problem, downsets),
        problem.num_parts,
        known=known,
        bound_s=bound_load(problem),
        is_late=is_late,
    )
    if proof.chain is None:
        raise explain_parts(problem) if proof.proven else too_little_time(time_limit_s)
    return make_parts_answer(
        problem,
        proof.chain.parts,
        solver="downset",
        bound_s=proof.bound_s,
        proven=proof.proven,
        note=f"{len(downsets):,} down-sets",
    )


def too_many_downsets(name: str, limit: int) -> SearchLimit:
    """The error for a graph that is too wide for this search."""
    return SearchLimit(
        f"{name!r} has more than {limit:,} down-sets.",
        remedy="Use --planner graph or auto, which search inside its modules only, or keep more ops"
        " together.",
    )


def too_little_time(time_limit_s: float) -> SearchLimit:
    """The error when the clock stopped the search before it found anything."""
    return SearchLimit(
        f"Nothing that fits was found in {time_limit_s:g} s.",
        remedy=f"Use --time-limit {max(10, 4 * time_limit_s):g}.",
    )
