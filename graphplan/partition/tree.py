"""The `tree` planner: a dynamic program over the decomposition of any DAG.

The graph is folded and decomposed into series, parallel and prime modules; the program proposes
drafts for the most promising micro-batch sizes and device units (trees/). It knows neither stages
that share devices nor contention: `graph` and `auto` improve its drafts by moves (improve.py).
"""

from __future__ import annotations

from collections.abc import Generator

from graphplan.cost.model import CostModel
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.dag.decompose import find_primes
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.localsearch import canonical
from graphplan.partition.proposal import Proposals, Wish
from graphplan.partition.trees.candidates import CandidateSearch

LEAST_ITEMS, ITEMS_PER_DEVICE, MOST_ITEMS = 64, 4, 256
"""Items of a chain in the dynamic program: several for every stage that there may be."""
MAX_SETTINGS = 10
"""Micro-batch sizes and device units that it tries."""
NUM_JUDGED = 12
"""Of its drafts are proposed, and the best one of every micro-batch size."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """The drafts of the dynamic program."""
    _, note = yield from propose_trees(cost, wish)
    return note


def propose_trees(
    cost: CostModel, wish: Wish
) -> Generator[Draft | None, float, tuple[list[Draft], str]]:
    """The drafts of the dynamic program, those that were judged first, best of them on top."""
    wanted = ITEMS_PER_DEVICE * len(cost.problem.cluster.devices)
    search = CandidateSearch(
        cost,
        Appraiser(cost),
        max_items=min(max(LEAST_ITEMS, wanted), MOST_ITEMS),
        max_settings=wish.scale(MAX_SETTINGS),
    )
    found: dict[frozenset[Part], tuple[float, Draft]] = {}
    for step_s, draft in search.run():
        found.setdefault(canonical(draft), (step_s, draft))
        yield None
    ranked = [draft for _, draft in sorted(found.values(), key=lambda each: each[0])]
    first_by_size: dict[int, Draft] = {}
    for draft in ranked:
        first_by_size.setdefault(draft[0].micro_batch_size, draft)
    chosen = dict.fromkeys((*ranked[: wish.scale(NUM_JUDGED)], *first_by_size.values()))
    judged: dict[Draft, float] = {}
    for draft in chosen:
        judged[draft] = yield draft
    primes = len(find_primes(search.tree))
    best = sorted(judged, key=lambda draft: judged[draft])
    drafts = list(dict.fromkeys([*best, *ranked]))
    return drafts, f"{primes} prime modules" if primes else "series-parallel"
