"""Collecting a plan: prices, schedule, program, simulation and the referee's verdict."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import graphplan
from graphplan.cost.model import CostModel
from graphplan.errors import CheckFailed, InvalidOption, NoFeasiblePlan
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import (
    Bound,
    Certainty,
    Ended,
    MixedOp,
    Plan,
    PlannedModel,
    PolicyOffer,
    Prediction,
    Provenance,
)
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule
from graphplan.nouns.stages import StageGraph
from graphplan.partition.bounds.bound import bound_step
from graphplan.planner.options import SearchOptions
from graphplan.planner.sequential import chain_stages
from graphplan.planner.streaming import plan_stream, predict_stream
from graphplan.referee import check_plan
from graphplan.report.labels import label_stages
from graphplan.schedule.auto import build_schedule, count_dispatches
from graphplan.schedule.greedy import build_rehearsed
from graphplan.schedule.lower import lower_fully, lower_schedule
from graphplan.simulate import predict_script

FLUSH = WeightPolicy()
QUICK_PASSES = 12
"""Passes over all tasks that a search of the schedule takes at least."""


class Scheduled(Noun, frozen=True, kw_only=True):
    """A stage graph with prices, its program, and what the simulator says of it."""

    priced: PricedStages
    policy: WeightPolicy = FLUSH
    schedule: str
    program: Program
    prediction: Prediction


def schedule_stages(
    cost: CostModel,
    stages: StageGraph,
    options: SearchOptions,
    *,
    effort: float,
    sequential: bool = False,
) -> Scheduled:
    """Price, schedule, lower and simulate a stage graph; `sequential` runs it in one line."""
    if options.streams(stages):
        return _schedule_stream(cost, stages, options, effort=effort)
    policy = options.make_policy()
    if not policy.is_synchronous:
        policy = FLUSH
    priced = cost.price_stages(stages, policy)
    if sequential:
        priced = chain_stages(priced)
    return schedule_prices(
        priced,
        policy,
        schedule=options.schedule,
        effort=effort,
        seed=options.seed,
    )


def schedule_prices(
    priced: PricedStages,
    policy: WeightPolicy = FLUSH,
    *,
    schedule: str = "auto",
    effort: float = 10.0,
    seed: int = 0,
) -> Scheduled:
    """The named schedule lowered and simulated.

    Where the effort is small for so many tasks, the best quick order is all there is of auto.
    """
    num_passes = count_dispatches(priced, allow_split=True, effort=effort)
    if schedule == "auto" and num_passes < QUICK_PASSES:
        with suppress(InvalidOption, NoFeasiblePlan):
            return _simulate_schedule(priced, policy, build_rehearsed(priced))
    found = build_schedule(priced, name=schedule, effort=effort, seed=seed)
    return _simulate_schedule(priced, policy, found.schedule)


def _simulate_schedule(priced: PricedStages, policy: WeightPolicy, schedule: Schedule) -> Scheduled:
    lowered = lower_fully(priced, schedule, policy)
    return Scheduled(
        priced=priced,
        policy=policy,
        schedule=schedule.name,
        program=lowered.program,
        prediction=predict_script(priced, lowered.script, lowered.tasks),
    )


def _schedule_stream(
    cost: CostModel, stages: StageGraph, options: SearchOptions, *, effort: float
) -> Scheduled:
    """The same for an asynchronous policy."""
    priced, policy, schedule = plan_stream(cost, stages, options, effort=effort)
    program = lower_schedule(priced, schedule, policy)
    return Scheduled(
        priced=priced,
        policy=policy,
        schedule=schedule.name,
        program=program,
        prediction=predict_stream(priced, policy, program, seed=options.seed),
    )


def collect_plan(
    graph: OpGraph,
    cost: CostModel,
    stages: StageGraph,
    ready: Scheduled,
    options: SearchOptions,
    *,
    bound: Bound,
    ended: Ended = "",
    baselines: Mapping[str, float],
    offers: tuple[PolicyOffer, ...] = (),
    costs: str,
    certainty: Certainty | None = None,
) -> Plan:
    """The plan of scheduled stages; a plan that the referee refuses is never returned."""
    if not ready.policy.is_synchronous:
        bound = bound_step(cost.problem, barrier=False)
    elif ready.policy.local_steps > 1:
        bound = bound_step(cost.problem, local_steps=ready.policy.local_steps)
    plan = Plan(
        model=describe_model(graph),
        cluster=cost.problem.cluster,
        training=cost.problem.training,
        stages=stages,
        policy=ready.policy,
        prices=ready.priced,
        program=tuple(str(ready.program).split("\n")),
        prediction=ready.prediction,
        bound=Bound(step_s=min(bound.step_s, ready.prediction.step_s), proof=bound.proof),
        baselines=dict(baselines),
        offers=offers,
        provenance=Provenance(
            graphplan=graphplan.__version__,
            planner=options.planner,
            schedule=ready.schedule,
            costs=costs,
            seed=options.seed,
            effort=options.effort,
            ended=ended,
            options=options.list_changed(),
            certainty=certainty,
        ),
        labels=label_stages(graph, stages),
    )
    require_legal(plan)
    return plan


def describe_model(graph: OpGraph) -> PlannedModel:
    """The op DAG as a plan carries it."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    return PlannedModel(
        name=graph.name,
        fingerprint=graph.fingerprint,
        ops=tuple(position),
        edges=tuple(sorted({(position[e.src], position[e.dst]) for e in graph.edges})),
        batch=graph.batch,
        mixing=tuple(
            MixedOp(op=each.op, module=graph.op_by_name[each.op].module, kind=each.kind)
            for each in graph.mixing
            if each.op in position
        ),
    )


def require_legal(plan: Plan) -> None:
    """Raise when the referee finds a broken rule."""
    violations = check_plan(plan).violations
    if violations:
        first = violations[0]
        raise CheckFailed(
            f"The plan breaks the rule {first.rule!r} at {first.place}: {first.message}",
            remedy="This is a bug of graphplan; please report it with the model and the options.",
        )
