"""Exact search over down-sets (dnn-partitioning, Tarnawski et al., NeurIPS 2020; Piper, 2021).

For max-load: the optimum over all chains of down-sets. For pipelines: Piper's dynamic program over
down-sets with replicated stages, the bottleneck as its objective; stages are placed one after the
other as in a chain, but hold any nodes that a cut of the graph allows. Light nodes are folded into
their neighbours until the graph has few enough down-sets; a graph that still has too many is
searched over a sample of them, and the answer says so.
"""

from __future__ import annotations

import time

from graphplan.errors import SearchLimit
from graphplan.nouns.maxload import MaxLoad, PartsAnswer
from graphplan.nouns.problem import Problem
from graphplan.partition.answer import Answer, Request
from graphplan.partition.choose import Chooser
from graphplan.partition.dag.downsets import enumerate_downsets
from graphplan.partition.maxload.contract import contract_maxload
from graphplan.partition.maxload.corridor import improve_chain
from graphplan.partition.maxload.cover import Engine, Family
from graphplan.partition.maxload.incumbent import find_incumbent
from graphplan.partition.maxload.loads import bound_load, make_parts_answer
from graphplan.partition.maxload.prove import SMALL, explain_parts, prove_optimum
from graphplan.partition.maxload.shrink import restore_answer
from graphplan.partition.pipelines.family import list_all_pairs, sample_pairs
from graphplan.partition.pipelines.sweep import sweep_settings

MAX_DOWNSETS = 400_000
FEW_ROUNDS = 5
"""Rounds in corridors without a gain before the exact search starts."""
COARSE_DOWNSETS, FINE_DOWNSETS = 120, 700
"""Down-sets for the sweep over all settings, and for the best of them."""


def solve(problem: Problem, request: Request) -> Answer:
    """The best pipeline whose stages lie between down-sets."""
    chooser = Chooser(problem, request, solver="downset")
    with chooser.keep_best():
        whole = list_all_pairs(problem, limit=FINE_DOWNSETS)
        sampled = sample_pairs(problem, limit=FINE_DOWNSETS, seed=request.seed)
        coarse = list_all_pairs(problem, limit=COARSE_DOWNSETS)
        if coarse is None:
            coarse = sample_pairs(problem, limit=COARSE_DOWNSETS, seed=request.seed)
        fine = [] if whole is None else [whole]
        # What is folded a lot misses cuts that a sample of finer down-sets has.
        if whole is None or len(whole.groups) < len(sampled.groups):
            fine.append(sampled)
        sweep_settings(chooser, coarse, fine)
    note = (
        f"more than {FINE_DOWNSETS} down-sets: {len(sampled.downsets)} of them were searched"
        if whole is None
        else f"all {len(whole.downsets)} down-sets of {len(whole.groups)} groups of nodes"
    )
    return chooser.make_answer(note=note)


def solve_maxload(
    problem: MaxLoad,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    max_downsets: int = MAX_DOWNSETS,
    engine: Engine = "auto",
) -> PartsAnswer:
    """The optimum, or the best cut and bound when time runs out."""
    small, groups = contract_maxload(problem)
    answer = _solve_contracted(small, time_limit_s, seed, max_downsets, engine)
    return restore_answer(problem, groups, answer)


def _solve_contracted(
    problem: MaxLoad, time_limit_s: float, seed: int, max_downsets: int, engine: Engine
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
        engine=engine,
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
