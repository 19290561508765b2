"""The search, on one page.

    OpGraph -> coarsen -> Problem -> solver -> StageGraph -> prices -> Schedule -> Program
            -> simulate -> referee -> Plan

Solvers see the fast evaluation; the plan and its baselines carry simulated times. All use the same
cost model. The time limit is shared by the clock: the baselines first, then the solver until a
certain share of it has passed, then the schedules.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan, SearchLimit
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan, PolicyOffer
from graphplan.partition import solve_problem
from graphplan.partition.answer import Answer, Progress, Request
from graphplan.planner.certainty import judge_certainty
from graphplan.planner.collect import Scheduled, collect_plan, schedule_stages
from graphplan.planner.evaluate import make_confirmer, make_evaluator, make_rehearser
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import Tables, pose_problem
from graphplan.planner.streaming import offer_policies
from graphplan.schedule.auto import measure_pass

BASELINES: dict[str, tuple[str, ...]] = {
    "data-parallel": ("data-parallel",),
    "linear": ("chain", "equal"),
}
"""Names of the baselines and the planners whose best plan each of them is."""
SEQUENTIAL = "sequential"
"""The baseline whose stages run one after another: the linear planners asked again under that
rule. No plan of ours can be it, as a plan runs with its true dependencies only."""
SOLVER_SHARE, LINEAR_SHARE, SEQUENTIAL_SHARE = 0.5, 0.18, 0.08
"""Shares of the time limit: the solver, the linear planners, and these once more in one line."""
SCHEDULE_SHARE, BASELINE_SHARE = 0.1, 0.02
"""For the schedules of the plan and its alternatives, and for that of each baseline."""
SOLVED_UNTIL, SCHEDULED_UNTIL, COMPARED_UNTIL = 0.7, 0.83, 0.95
"""Shares of the time limit after which solver, schedules and baselines should have ended; what one
part leaves, the next may use."""
OFFER_SHARE = 0.02
"""For the order of each asynchronous policy that a plan is compared with."""
OFFERS_SHARE, OFFER_PASSES = 0.1, 50
"""What all of these may take, and about how many passes over all tasks they are: batches of very
many micro-batches, which have little to gain, are not compared."""


class Clock:
    """The time limit of a search, handed out to its parts."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self._started_s = limit_s, time.perf_counter()

    def share_until(self, end: float, *, least: float = 0.0, most: float = 1.0) -> float:
        """The share of the limit that is left until a share of it has passed."""
        passed_s = time.perf_counter() - self._started_s
        return max(least, min(most, end - passed_s / self.limit_s)) if self.limit_s else least

    def seconds_until(self, end: float, *, most: float = 1.0) -> float:
        """The same in seconds."""
        return self.limit_s * self.share_until(end, most=most)


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
    clock = Clock(options.time_limit_s)
    cost = CostModel(pose_problem(graph, cluster, options, tables=tables))
    # Rivals flush, as who does without our policy would.
    flushing = options if options.policy == "flush" else options.with_policy("flush")
    rivals: dict[str, tuple[Answer, Scheduled]] = {}
    known: dict[str, Answer] = {}
    if options.baselines:
        asked = make_request(cost, flushing, share=LINEAR_SHARE)
        rivals = _solve_baselines(cost, flushing, asked, BASELINES, clock)
        known = asked.known if flushing is options else {}
    share = clock.share_until(SOLVED_UNTIL, least=SOLVER_SHARE / 2)
    request = make_request(cost, options, progress=progress, known=known, share=share)
    answer = solve_problem(cost.problem, options.planner, request)
    limit_s = clock.seconds_until(SCHEDULED_UNTIL, most=SCHEDULE_SHARE)
    answer, ready = schedule_best(cost, answer, options, time_limit_s=limit_s)
    if options.baselines and not answer.interrupted:
        rivals = _add_sequential(cost, flushing, rivals, clock)
    if options.planner == "auto" and options.objective == "throughput" and flushing is options:
        plans = [found for name, found in rivals.items() if name != SEQUENTIAL]
        answer, ready = min([(answer, ready), *plans], key=lambda each: each[1].prediction.step_s)
    offers: tuple[PolicyOffer, ...] = ()
    left_s = clock.seconds_until(1.0, most=OFFERS_SHARE)
    quick = OFFER_PASSES * measure_pass(ready.priced) <= left_s
    if ready.policy.name == "flush" and quick and not answer.interrupted:
        limit_s = OFFER_SHARE * options.time_limit_s
        offers = offer_policies(cost, answer.stages, options, time_limit_s=limit_s)
    return collect_plan(
        graph,
        cost,
        answer,
        ready,
        options,
        baselines={name: found.prediction.step_s for name, (_, found) in rivals.items()},
        offers=offers,
        costs=next(iter(tables.values())).source if tables else "estimated",
        certainty=judge_certainty(tables) if tables else None,
    )


def _add_sequential(
    cost: CostModel,
    options: SearchOptions,
    rivals: Mapping[str, tuple[Answer, Scheduled]],
    clock: Clock,
) -> dict[str, tuple[Answer, Scheduled]]:
    """The rivals with the sequential baseline, whose stages are a linear cut too."""
    share = clock.share_until(COMPARED_UNTIL, most=SEQUENTIAL_SHARE)
    request = make_request(cost, options, sequential=True, share=share)
    answers = [answer for name, (answer, _) in rivals.items() if name == "linear"]
    found = _solve_baselines(
        cost, options, request, {SEQUENTIAL: BASELINES["linear"]}, clock, also=answers
    )
    if SEQUENTIAL not in found:
        return dict(rivals)
    answer = found[SEQUENTIAL][0]
    limit_s = clock.seconds_until(1.0, most=BASELINE_SHARE)
    freed = schedule_stages(cost, answer.stages, options, time_limit_s=limit_s)
    linear = min(
        [(answer, freed), *(rivals[name] for name in ("linear",) if name in rivals)],
        key=lambda each: each[1].prediction.step_s,
    )
    return {**rivals, **found, "linear": linear}


def schedule_best(
    cost: CostModel, answer: Answer, options: SearchOptions, *, time_limit_s: float
) -> tuple[Answer, Scheduled]:
    """The answer or an alternative of it, whichever simulates best under its own best schedule.

    Half of the time is for all of them alike, as many as it allows and two at least; what is left
    is for the two that look best then.
    """
    graphs = [answer.stages]
    if options.objective == "throughput":
        graphs += answer.alternatives
    clock = Clock(time_limit_s)
    ready: list[Scheduled] = []
    for stages in graphs:
        if len(ready) >= 2 and not clock.seconds_until(0.5):
            break
        limit_s = time_limit_s / 2 / len(graphs)
        ready.append(schedule_stages(cost, stages, options, time_limit_s=limit_s))
    ranked = sorted(range(len(ready)), key=lambda i: ready[i].prediction.step_s)
    for i in ranked[:2]:
        limit_s = clock.seconds_until(1.0, most=0.25)
        if not limit_s:
            break
        again = schedule_stages(cost, graphs[i], options, time_limit_s=limit_s)
        ready[i] = min(ready[i], again, key=lambda each: each.prediction.step_s)
    best = min(ranked[:2], key=lambda i: ready[i].prediction.step_s)
    return msgspec.structs.replace(answer, stages=graphs[best], alternatives=()), ready[best]


def make_request(
    cost: CostModel,
    options: SearchOptions,
    *,
    progress: Progress | None = None,
    sequential: bool = False,
    share: float = SOLVER_SHARE,
    known: Mapping[str, Answer] = MappingProxyType({}),
) -> Request:
    """What solvers are asked, for a share of the time limit; one request remembers the answers of
    all of them, and of those that were asked before."""
    return Request(
        evaluate=make_evaluator(cost, options, sequential=sequential),
        confirm=make_confirmer(cost, options, sequential=sequential),
        rehearse=make_rehearser(cost, options, sequential=sequential),
        time_limit_s=share * options.time_limit_s,
        seed=options.seed,
        policy=options.make_policy(),
        progress=progress,
        known={name: each for name, each in known.items() if name != options.planner},
    )


def _solve_baselines(
    cost: CostModel,
    options: SearchOptions,
    request: Request,
    planners_by_name: Mapping[str, Sequence[str]],
    clock: Clock,
    *,
    also: Sequence[Answer] = (),
) -> dict[str, tuple[Answer, Scheduled]]:
    """The plans that ours is compared with, scheduled and simulated; those that fit.

    A baseline competes for those after it (one stage is a linear cut, too), and so do answers to
    another request (`also`), by what this one says of them.
    """
    found: dict[str, tuple[Answer, Scheduled]] = {}
    for name, planners in planners_by_name.items():
        answers = [
            msgspec.structs.replace(answer, step_s=request.evaluate(answer.stages))
            for answer in (*also, *(earlier for earlier, _ in found.values()))
        ]
        for planner in planners:
            # InvalidOption: it has no plan with the user's pins, or for the user's schedule.
            with suppress(NoFeasiblePlan, SearchLimit, InvalidOption):
                answers.append(solve_problem(cost.problem, planner, request))
        best = min(answers, key=lambda answer: answer.step_s, default=None)
        if best is None or best.step_s == float("inf"):
            continue
        with suppress(NoFeasiblePlan, SearchLimit, InvalidOption):
            ready = schedule_stages(
                cost,
                best.stages,
                options,
                time_limit_s=clock.seconds_until(1.0, most=BASELINE_SHARE),
                sequential=name == SEQUENTIAL,
            )
            found[name] = (best, ready)
    return found
