"""What-if questions: a plan under other conditions, and all planners and schedules side by side."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from graphplan.cost.model import CostModel
from graphplan.cost.problem import make_problem
from graphplan.errors import GraphplanError, InvalidOption
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan, Prediction
from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import SCHEDULES
from graphplan.nouns.stages import StageGraph
from graphplan.nouns.timeline import Timeline
from graphplan.planner.collect import schedule_prices, schedule_stages
from graphplan.planner.options import PLANNER_NAMES, SearchOptions
from graphplan.planner.pose import Tables, estimate_tables, pose_problem
from graphplan.planner.search import WINNER_EFFORT, PlanSearch, read_search
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.steady import plan_steady
from graphplan.simulate import simulate_program


def simulate_plan(
    plan: Plan,
    *,
    graph: OpGraph | None = None,
    cluster: Cluster | None = None,
    batch_size: int | None = None,
    schedule: str | None = None,
    policy: PolicyName | None = None,
) -> Timeline:
    """The timeline of a plan's stages, optionally elsewhere, with another batch, schedule or
    weight policy."""
    priced = plan.prices if cluster is None else _price_elsewhere(plan, graph, cluster)
    if batch_size is None and schedule is None and cluster is None and policy is None:
        return simulate_program(priced, plan.parse_program())
    if batch_size is not None:
        priced = _change_batch(priced, batch_size)
    name = policy or plan.policy.name
    weights = WeightPolicy(name=name, local_steps=plan.policy.local_steps)
    if weights.is_synchronous:
        priced = _change_versions(plan, priced, weights)
        known = plan.provenance.schedule if plan.provenance.schedule in SCHEDULES else "auto"
        ready = schedule_prices(priced, weights, schedule=schedule or known)
        return simulate_program(priced, ready.program)
    if schedule is not None:
        raise InvalidOption(
            f"Policy {name} has an order of its own, not schedule {schedule}.",
            remedy="Leave out --schedule, or use --policy flush.",
        )
    weights, order = plan_steady(priced, name)
    weights = msgspec.structs.replace(weights, direction=plan.policy.direction)
    priced = _change_versions(plan, priced, weights)
    return simulate_program(priced, lower_schedule(priced, order, weights))


def _change_versions(plan: Plan, priced: PricedStages, policy: WeightPolicy) -> PricedStages:
    """The prices with the weight versions of another policy, as far as the plan knows weights."""
    if policy == plan.policy or not plan.labels:
        return priced

    def count_copies(policy: WeightPolicy, stage: int) -> int:
        directions = policy.num_directions(stage, plan.training.optimizer)
        return policy.num_versions(stage) + directions

    stages = tuple(
        msgspec.structs.replace(
            stage,
            fixed_bytes=stage.fixed_bytes
            + (count_copies(policy, s) - count_copies(plan.policy, s)) * label.param_bytes,
        )
        for s, (stage, label) in enumerate(zip(priced.stages, plan.labels, strict=True))
    )
    return msgspec.structs.replace(priced, stages=stages)


def _price_elsewhere(plan: Plan, graph: OpGraph | None, cluster: Cluster) -> PricedStages:
    """The plan's stages priced on another cluster, by estimate."""
    if graph is None or graph.fingerprint != plan.model.fingerprint:
        raise InvalidOption(
            f"The plan is for the graph {plan.model.fingerprint}, given is"
            f" {graph.fingerprint if graph else 'none'}.",
            remedy="Give the model file (and its settings) from which the plan was made.",
        )
    needed = 1 + max(device for stage in plan.stages.stages for device in stage.devices)
    if needed > len(cluster.devices):
        raise InvalidOption(
            f"The plan uses {needed} devices; the cluster has {len(cluster.devices)}.",
            remedy=f"Add --gpus {needed}.",
        )
    problem = make_problem(
        graph,
        estimate_tables(graph, cluster, plan.training),
        cluster,
        plan.training,
        [stage.ops for stage in plan.stages.stages],
        micro_batch_sizes=sorted({s.micro_batch_size for s in plan.stages.stages}),
    )
    return CostModel(problem).price_stages(plan.stages, plan.policy)


def _change_batch(priced: PricedStages, batch_size: int) -> PricedStages:
    try:
        return msgspec.structs.replace(priced, batch_size=batch_size)
    except ValueError as error:
        raise InvalidOption(
            f"{error}.", remedy="Use a batch that is a multiple of every micro-batch size."
        ) from error


def compare_planners(
    graph: OpGraph,
    cluster: Cluster,
    options: SearchOptions,
    *,
    planners: Sequence[str] | None = None,
    schedules: Sequence[str] | None = None,
    tables: Tables | None = None,
) -> list[dict[str, Any]]:
    """A row for every planner, then the best planner's stages under every schedule."""
    cost = CostModel(pose_problem(graph, cluster, options, tables=tables))
    rows: list[dict[str, Any]] = []
    best: tuple[float, str, StageGraph] | None = None
    for planner in planners or PLANNER_NAMES:
        asked = dataclasses.replace(options, planner=planner, baselines=False)
        start = time.process_time()
        search = PlanSearch(cost, asked)
        try:
            ended = read_search(search.run(), None)
            ready = search.finish(ended)
        except GraphplanError as error:
            rows.append(_empty_row(planner, options.schedule, error))
            continue
        seconds = time.process_time() - start
        rows.append(_make_row(search.stages, asked, ready.prediction, seconds))
        if best is None or rows[-1]["step_s"] < best[0]:
            best = (rows[-1]["step_s"], planner, search.stages)
        if ended:
            return rows
    if not options.make_policy().is_synchronous:
        return rows  # Such a policy has one order only.
    for schedule in schedules or (name for name in SCHEDULES if name != options.schedule):
        if best is not None:
            asked = dataclasses.replace(options, planner=best[1], schedule=schedule)
            start = time.process_time()
            effort = WINNER_EFFORT * options.effort
            try:
                ready = schedule_stages(cost, best[2], asked, effort=effort)
            except GraphplanError as error:
                rows.append(_empty_row(best[1], schedule, error))
                continue
            seconds = time.process_time() - start
            rows.append(_make_row(best[2], asked, ready.prediction, seconds))
    return rows


def _make_row(
    stages: StageGraph, options: SearchOptions, prediction: Prediction, seconds: float
) -> dict[str, Any]:
    """A row of the table; seconds are those of the processor."""
    return {
        "planner": options.planner,
        "schedule": options.schedule,
        "stages": len(stages.stages),
        "step_s": prediction.step_s,
        "samples_per_s": prediction.samples_per_s,
        "bubble": prediction.bubble,
        "peak_bytes": max(prediction.peak_bytes_by_device),
        "seconds": seconds,
    }


def _empty_row(planner: str, schedule: str, error: GraphplanError) -> dict[str, Any]:
    return {"planner": planner, "schedule": schedule, "step_s": None, "note": error.message}
