"""Collecting a plan: prices, schedule, program, simulation and the referee's verdict."""

from __future__ import annotations

from collections.abc import Mapping

import graphplan
from graphplan.cost.model import CostModel
from graphplan.errors import CheckFailed
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Bound, Certainty, Plan, PlannedModel, Prediction, Provenance
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.nouns.stages import StageGraph
from graphplan.partition.answer import Answer
from graphplan.planner.options import SearchOptions
from graphplan.planner.sequential import chain_stages
from graphplan.referee import check_plan
from graphplan.report.labels import label_stages
from graphplan.schedule.auto import build_schedule
from graphplan.schedule.lower import lower_schedule
from graphplan.simulate import predict_step

FLUSH = WeightPolicy()


class Scheduled(Noun, frozen=True, kw_only=True):
    """A stage graph with prices, its program, and what the simulator says of it."""

    priced: PricedStages
    schedule: str
    program: Program
    prediction: Prediction


def schedule_stages(
    cost: CostModel,
    stages: StageGraph,
    options: SearchOptions,
    *,
    time_limit_s: float,
    sequential: bool = False,
) -> Scheduled:
    """Price, schedule, lower and simulate a stage graph; `sequential` runs it in one line."""
    priced = cost.price_stages(stages, FLUSH)
    if sequential:
        priced = chain_stages(priced)
    found = build_schedule(
        priced, name=options.schedule, time_limit_s=time_limit_s, seed=options.seed
    )
    program = lower_schedule(priced, found.schedule, FLUSH)
    return Scheduled(
        priced=priced,
        schedule=found.schedule.name,
        program=program,
        prediction=predict_step(priced, program),
    )


def collect_plan(
    graph: OpGraph,
    cost: CostModel,
    answer: Answer,
    ready: Scheduled,
    options: SearchOptions,
    *,
    baselines: Mapping[str, float],
    costs: str,
    certainty: Certainty | None = None,
) -> Plan:
    """The plan of a scheduled answer; a plan that the referee refuses is never returned."""
    plan = Plan(
        model=describe_model(graph),
        cluster=cost.problem.cluster,
        training=cost.problem.training,
        stages=answer.stages,
        policy=FLUSH,
        prices=ready.priced,
        program=tuple(str(ready.program).split("\n")),
        prediction=ready.prediction,
        bound=Bound(
            step_s=min(answer.bound.step_s, ready.prediction.step_s), proof=answer.bound.proof
        ),
        baselines=dict(baselines),
        provenance=Provenance(
            graphplan=graphplan.__version__,
            planner=answer.solver,
            schedule=ready.schedule,
            costs=costs,
            seed=options.seed,
            options=options.list_changed(),
            certainty=certainty,
        ),
        labels=label_stages(graph, answer.stages),
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
