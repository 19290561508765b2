"""Polishing a draft: CP-SAT moves nodes between its stages, all borders at once.

Stages, devices, micro-batch sizes, recomputation and micro-batches in flight stay as they are; an
integer program chooses where nodes near the borders run (retouch.py). It minimises what the
appraisal estimates, which is linear once these are fixed. Every better solution on the way is
appraised, and the most promising ones are evaluated: the program only proposes.

One worker, a fixed seed and a limit on counted work make the result repeatable; the clock only
ends a search that would go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from graphplan.nouns.problem import Floats
from graphplan.partition.assemble import Part
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.localsearch import Evaluate
from graphplan.partition.drafts.retouch import Retouch, sort_draft
from graphplan.partition.drafts.scene import Draft, is_legal_draft

MAX_ROUNDS = 6
"""Programs in a row, each from the best draft of the one before."""
MAX_EVALUATED = 6
"""Solutions of one program that are evaluated."""
SLACK = 0.03
"""How much worse than the draft a solution may look and still be evaluated."""
EFFORT = 0.1
"""Deterministic seconds of one program: about half a second."""
LEAST_S = 0.2
"""With less time left no program is solved."""


def polish_draft(
    appraiser: Appraiser,
    work: Floats,
    draft: Draft,
    evaluate: Evaluate,
    *,
    seconds_left: Callable[[], float],
    seed: int = 0,
) -> tuple[Draft, float]:
    """The best draft found from this one, and its step seconds; never a worse one."""
    step_s = evaluate(draft)
    for _ in range(MAX_ROUNDS):
        found = _find_better(appraiser, work, draft, step_s, evaluate, seconds_left, seed)
        if found is None:
            break
        draft, step_s = found
    return draft, step_s


def _find_better(
    appraiser: Appraiser,
    work: Floats,
    draft: Draft,
    step_s: float,
    evaluate: Evaluate,
    seconds_left: Callable[[], float],
    seed: int,
) -> tuple[Draft, float] | None:
    """The best of the solutions of one program, if it is better."""
    ordered = sort_draft(appraiser.problem, draft)
    now = appraiser.appraise(ordered)
    if now is None or now.excess_bytes or len(draft) < 2 or seconds_left() < LEAST_S:
        return None
    ranked: list[tuple[float, Draft]] = []
    for candidate in dict.fromkeys(_propose(appraiser, work, ordered, seconds_left, seed)):
        estimate = appraiser.appraise(candidate)
        if estimate is not None and estimate.rank < (False, now.step_s * (1 + SLACK)):
            ranked.append((estimate.step_s, candidate))
    ranked.sort(key=lambda each: each[0])
    best: tuple[Draft, float] | None = None
    for _, candidate in ranked[:MAX_EVALUATED]:
        if seconds_left() <= 0:
            break
        found_s = evaluate(candidate)
        if found_s < step_s * (1 - 1e-9):
            best, step_s = (candidate, found_s), found_s
    return best


def _propose(
    appraiser: Appraiser,
    work: Floats,
    ordered: Draft,
    seconds_left: Callable[[], float],
    seed: int,
) -> Iterator[Draft]:
    """Legal drafts of the solutions, for each of the program's aims."""
    retouch = Retouch(appraiser, work, ordered)
    for aim in retouch.list_aims():
        if seconds_left() < LEAST_S:
            return
        found, least = _solve(retouch, aim, seconds_left(), seed)
        if aim is retouch.step and found:
            retouch.keep_step(least)
        for places in found:
            draft = _move_nodes(ordered, places)
            if is_legal_draft(appraiser.problem, draft):
                yield draft


def _solve(
    retouch: Retouch, aim: Any, limit_s: float, seed: int
) -> tuple[list[dict[int, int]], int]:
    """The part of every free node in every better solution that was met, and the least value."""
    from ortools.sat.python import cp_model

    class Collector(cp_model.CpSolverSolutionCallback):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[dict[int, int]] = []

        def on_solution_callback(self) -> None:
            self.found.append(retouch.read_places(self.boolean_value))

    retouch.model.minimize(aim)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = EFFORT
    # Better solutions matter and no proof: presolve and relaxations cost more than they bring.
    solver.parameters.linearization_level = 0
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.max_time_in_seconds = limit_s
    collector = Collector()
    status = solver.solve(retouch.model, collector)
    known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return collector.found, round(solver.objective_value) if known else 0


def _move_nodes(ordered: Draft, places: dict[int, int]) -> Draft:
    """The draft with the free nodes in other parts; parts that lost all nodes are left out."""
    nodes: list[list[int]] = [[v for v in part.nodes if v not in places] for part in ordered]
    for v, p in places.items():
        nodes[p].append(v)
    return tuple(
        Part(
            nodes=tuple(sorted(nodes[p])),
            devices=part.devices,
            micro_batch_size=part.micro_batch_size,
            recompute=part.recompute,
        )
        for p, part in enumerate(ordered)
        if nodes[p]
    )
