"""The search, on one page.

    OpGraph -> coarsen -> Problem -> solver -> StageGraph -> prices -> Schedule -> Program
            -> simulate -> referee -> Plan

Solvers see the fast evaluation; the plan and its baselines carry simulated times. All use the same
cost model. The time limit is shared: most of it for the solver, the rest for the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from graphplan.cost.model import CostModel
from graphplan.errors import NoFeasiblePlan, SearchLimit
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.partition import solve_problem
from graphplan.partition.answer import Answer, Progress, Request
from graphplan.planner.certainty import judge_certainty
from graphplan.planner.collect import Scheduled, collect_plan, schedule_stages
from graphplan.planner.evaluate import make_evaluator
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import Tables, pose_problem

BASELINES: dict[str, tuple[str, ...]] = {
    "data-parallel": ("data-parallel",),
    "linear": ("chain", "equal"),
}
"""Names of the baselines and the planners whose best plan each of them is."""
SEQUENTIAL = "sequential"
"""The baseline whose stages run one after another: the linear planners asked again under that
rule. No plan of ours can be it, as a plan runs with its true dependencies only."""
SOLVER_SHARE, SEQUENTIAL_SHARE, SCHEDULE_SHARE, BASELINE_SHARE = 0.55, 0.1, 0.15, 0.05
"""Shares of the time limit: the solver, the sequential planners, the plan's schedule, the schedule
of each baseline."""


def search_plan(
    graph: OpGraph,
    cluster: Cluster,
    options: SearchOptions | None = None,
    *,
    tables: Tables | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best plan that the chosen planner finds; costs are estimated unless tables are given."""
    options = options or SearchOptions()
    cost = CostModel(pose_problem(graph, cluster, options, tables=tables))
    request = make_request(cost, options, progress=progress)
    rivals: dict[str, tuple[Answer, Scheduled]] = {}
    if options.baselines:
        rivals = _solve_baselines(cost, options, request, BASELINES)
    answer = solve_problem(cost.problem, options.planner, request)
    answer, ready = _schedule_best(cost, answer, options)
    if options.planner == "auto" and options.objective == "throughput":
        answer, ready = min(
            [(answer, ready), *rivals.values()], key=lambda each: each[1].prediction.step_s
        )
    if options.baselines and not answer.interrupted:
        in_line = make_request(cost, options, sequential=True)
        rivals |= _solve_baselines(cost, options, in_line, {SEQUENTIAL: BASELINES["linear"]})
    return collect_plan(
        graph,
        cost,
        answer,
        ready,
        options,
        baselines={name: found.prediction.step_s for name, (_, found) in rivals.items()},
        costs=next(iter(tables.values())).source if tables else "estimated",
        certainty=judge_certainty(tables) if tables else None,
    )


def _schedule_best(
    cost: CostModel, answer: Answer, options: SearchOptions
) -> tuple[Answer, Scheduled]:
    """The answer or an alternative of it, whichever simulates best under its own best schedule."""
    graphs = [answer.stages]
    if options.objective == "throughput":
        graphs += answer.alternatives
    limit_s = SCHEDULE_SHARE * options.time_limit_s / len(graphs)
    ready = [schedule_stages(cost, stages, options, time_limit_s=limit_s) for stages in graphs]
    best = min(range(len(graphs)), key=lambda i: ready[i].prediction.step_s)
    return msgspec.structs.replace(answer, stages=graphs[best], alternatives=()), ready[best]


def make_request(
    cost: CostModel,
    options: SearchOptions,
    *,
    progress: Progress | None = None,
    sequential: bool = False,
) -> Request:
    """What solvers are asked; one request remembers the answers of all of them."""
    return Request(
        evaluate=make_evaluator(cost, objective=options.objective, sequential=sequential),
        time_limit_s=(SEQUENTIAL_SHARE if sequential else SOLVER_SHARE) * options.time_limit_s,
        seed=options.seed,
        progress=progress,
    )


def _solve_baselines(
    cost: CostModel,
    options: SearchOptions,
    request: Request,
    planners_by_name: Mapping[str, Sequence[str]],
) -> dict[str, tuple[Answer, Scheduled]]:
    """The plans that ours is compared with, scheduled and simulated; those that fit."""
    limit_s = BASELINE_SHARE * options.time_limit_s
    found: dict[str, tuple[Answer, Scheduled]] = {}
    for name, planners in planners_by_name.items():
        for planner in planners:
            try:
                answer = solve_problem(cost.problem, planner, request)
                ready = schedule_stages(
                    cost,
                    answer.stages,
                    options,
                    time_limit_s=limit_s,
                    sequential=name == SEQUENTIAL,
                )
            except (NoFeasiblePlan, SearchLimit):
                continue
            if name not in found or ready.prediction.step_s < found[name][1].prediction.step_s:
                found[name] = (answer, ready)
    return found
