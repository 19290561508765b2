"""Seeds: answers of other planners as drafts to start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from graphplan.cost.model import CostModel
from graphplan.errors import GraphplanError
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition import solve_problem
from graphplan.partition.answer import Answer, Request
from graphplan.partition.assemble import Part
from graphplan.partition.drafts.scene import Draft

PLANNERS = (
    ("data-parallel", 0.0),
    ("equal", 3.0),
    ("graphpipe", 3.0),
    ("chain", 3.0),
    ("2bw", 8.0),
    ("downset", 8.0),
)
"""Names, and the time limits from which on they are asked."""
MAX_NODES = 2000
"""Nodes above which none is asked."""
MAX_SHARE = 0.4
"""Share of the time that is left which one planner may take."""


def ask_planners(problem: Problem, request: Request, *, until: float) -> Iterator[Answer]:
    """Answers of planners that were not asked yet, as far as size and time limit allow; nobody is
    asked after this share of the time."""
    if problem.num_nodes > MAX_NODES:
        return
    for name, least_s in PLANNERS:
        left_s = (request.share_left - (1 - until)) * request.time_limit_s
        if request.time_limit_s < least_s or left_s <= 0:
            continue
        if name not in request.known:
            answer = _ask(problem, name, request, MAX_SHARE * left_s)
            if answer is not None:
                yield answer
                if answer.interrupted:
                    raise KeyboardInterrupt


def _ask(problem: Problem, name: str, request: Request, seconds: float) -> Answer | None:
    """One planner's answer, within its share of the time; what it finds is known from then on."""
    spent_s = request.time_limit_s - request.seconds_left
    limited = dataclasses.replace(request, time_limit_s=spent_s + seconds, progress=None)
    try:
        return solve_problem(problem, name, limited)
    except GraphplanError:
        return None


def make_draft(cost: CostModel, stages: StageGraph) -> Draft:
    """The draft of a stage graph."""
    return tuple(
        Part(
            nodes=cost.stage_nodes(stage),
            devices=stage.devices,
            micro_batch_size=stage.micro_batch_size,
            recompute=stage.recompute,
        )
        for stage in stages.stages
    )
