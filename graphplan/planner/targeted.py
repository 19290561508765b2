"""Searching for a plan that another runtime can run, and what that costs.

The free search comes first: if the gate (export/gate.py) lets its plan pass, that is the answer,
and else the gate's objections say what has to be given up. The planners whose stages are chains are
then asked again, with layers that stay whole where the runtime knows nothing finer and with the
orders that it has. The best plan that passes the gate wins: whatever is found can be exported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import product

import msgspec

from graphplan.errors import InvalidOption, NoFeasiblePlan, SearchLimit, UnknownName
from graphplan.export.gate import judge_export, judge_model
from graphplan.export.gate_stages import Objection
from graphplan.export.layers import LayerList, list_layers
from graphplan.export.targets import TARGETS, Target
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import Tables
from graphplan.planner.search import Watch, search_plan

CHAINS = ("chain", "2bw", "equal", "data-parallel")
"""Planners whose stages are chains."""
RECOMPUTES = ("none", "full")
"""What is tried where a target cannot say what `auto` chooses."""


@dataclasses.dataclass(frozen=True)
class Targeted:
    """A plan that a target can run."""

    target: Target
    plan: Plan
    free_step_s: float | None
    """The step of the free search; None when nobody asked for it."""
    given_up: tuple[Objection, ...]
    """What the target could not say of the free search's plan."""


def search_for(
    graph: OpGraph,
    cluster: Cluster,
    options: SearchOptions,
    target_name: str,
    *,
    tables: Tables | None = None,
    watch: Watch | None = None,
) -> Targeted:
    """The best plan found that passes the gate; without baselines there is no free search."""
    if target_name not in TARGETS:
        raise UnknownName("export target", target_name, TARGETS)
    target = TARGETS[target_name]
    listed = list_layers(graph)
    refused = tuple(judge_model(graph, target, listed))
    if refused:
        raise InvalidOption(
            f"{target.title} cannot run any plan of this model: {refused[0].reason}.",
            remedy=refused[0].remedy,
        )
    search = partial(search_plan, graph, cluster, tables=tables, watch=watch)
    free = search(options) if options.baselines else None
    given_up = judge_export(free, target, graph) if free else ()
    if free is not None and not given_up:
        return Targeted(target, free, free.prediction.step_s, ())
    plans: list[Plan] = []
    objections = {each.aspect: each.reason for each in given_up}
    for planner in list_planners(options, target):
        for attempt in list_attempts(options, target, listed, planner):
            try:
                plan = search(attempt)
            except (InvalidOption, NoFeasiblePlan, SearchLimit):
                continue
            found = judge_export(plan, target, graph)
            objections |= {each.aspect: each.reason for each in found}
            if not found:
                plans.append(plan)
            if not {"recompute", "zero"} & {each.aspect for each in found}:
                break
    if not plans:
        raise NoFeasiblePlan(
            f"No plan was found that {target.title} can run:"
            f" {'; '.join(objections.values()) or 'nothing fits'}.",
            remedy="Search with other --gpus, or without --for and `graphplan run` the plan.",
        )
    best = min(plans, key=lambda each: each.prediction.step_s)
    if free is None:
        return Targeted(target, best, None, ())
    best = msgspec.structs.replace(best, baselines=free.baselines)
    return Targeted(target, best, free.prediction.step_s, given_up)


def list_planners(options: SearchOptions, target: Target) -> tuple[str, ...]:
    """The planner that the user named, or those whose stages are chains."""
    if options.planner != "auto":
        return (options.planner,)
    return CHAINS if target.replicated else ("chain", "equal")


def list_attempts(
    options: SearchOptions, target: Target, listed: LayerList | None, planner: str
) -> Iterator[SearchOptions]:
    """The user's options, narrowed to the target; later ones choose recomputation and ZeRO for
    all stages alike."""
    together = options.together
    if target.layered and listed is not None:
        together += group_ops(listed)
    schedule = options.schedule
    if schedule == "auto" and target.orders:
        schedule = target.orders[0]
    choices = RECOMPUTES if options.recompute == "auto" else ()
    levels = tuple(map(str, target.zero)) if options.zero == "auto" else ()
    for recompute, zero in product((options.recompute, *choices), (options.zero, *levels)):
        yield dataclasses.replace(
            options,
            planner=planner,
            schedule=schedule,
            together=together,
            recompute=recompute,
            zero=zero,
            baselines=False,
        )


def group_ops(listed: LayerList) -> tuple[tuple[str, ...], ...]:
    """Ops that stay together: every layer, what comes before the first one, and the head."""
    order = list(listed.place_by_op.items())
    first = next(i for i, (_, place) in enumerate(order) if isinstance(place, int))
    front = tuple(
        name
        for i, (name, place) in enumerate(order)
        if place == "entry" or (i < first and place == "free")
    )
    layers = tuple(map(listed.list_ops, range(len(listed.indices))))
    return tuple(filter(None, (front, *layers, listed.list_ops("exit"))))


def describe_target(found: Targeted) -> str:
    """What was given up for the target and what that costs, for people."""
    title, step_s = found.target.title, found.plan.prediction.step_s
    if found.free_step_s is None:
        return f"{title} can run this plan."
    if not found.given_up:
        return f"{title} can run this plan, and the free search finds no better one."
    reasons = "; ".join(each.reason for each in found.given_up)
    return (
        f"{title} can run this plan, whose step takes {step_s * 1e3:.1f} ms,"
        f" {step_s / found.free_step_s:.2f}x that of the free search. Given up: {reasons}."
    )
