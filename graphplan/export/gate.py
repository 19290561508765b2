"""The gate: what a runtime cannot say of a plan, with what would make it sayable.

Every exporter takes only plans that have passed. The questions about stages need no finished plan:
gate_stages has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphplan.errors import InvalidOption
from graphplan.export.gate_stages import Objection, judge_stages
from graphplan.export.layers import (
    LayerList,
    StageLayers,
    find_detour,
    find_ties,
    find_unlike,
    list_layers,
    place_stages,
)
from graphplan.export.order import build_order, read_order
from graphplan.export.targets import Target, name_precision
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.training import Training
from graphplan.schedule.interleaved import measure_round


class LayerPlan(Noun, frozen=True, kw_only=True):
    """A plan as a list of layers, which has passed the gate."""

    listed: LayerList
    stages: tuple[StageLayers, ...]
    replicas: int
    num_ranks: int
    """Pipeline ranks: devices of one replica."""
    micro_batch_size: int
    """Of one replica."""
    num_micro_batches: int
    zero: int
    tied: tuple[str, ...]
    """Weights that embedding and head share."""


def pass_gate(plan: Plan, target: Target, graph: OpGraph) -> None:
    """Refuse a plan that the target cannot say, with all reasons."""
    if graph.fingerprint != plan.model.fingerprint:
        raise InvalidOption(
            f"The model has the fingerprint {graph.fingerprint}, the plan"
            f" {plan.model.fingerprint}.",
            remedy="Give the model file and settings from which the plan was made.",
        )
    found = judge_export(plan, target, graph)
    if found:
        reasons = "; ".join(each.reason for each in found)
        remedies = dict.fromkeys(each.remedy for each in found)
        raise InvalidOption(
            f"{target.title} cannot run this plan: {reasons}.",
            remedy=f"{' '.join(remedies)} `graphplan search --for {target.name}` finds plans that"
            " it can run; `graphplan run` runs this one.",
        )


def judge_export(plan: Plan, target: Target, graph: OpGraph) -> tuple[Objection, ...]:
    """All that the target cannot say of a plan; () when it can say everything."""
    listed = list_layers(graph)
    num_devices = len(plan.prices.memory_bytes_by_device)
    found = (
        *judge_model(graph, target, listed),
        *_judge_policy(plan.policy),
        *_judge_training(plan.training, target),
        *judge_stages(plan.stages, target, graph, listed, num_devices=num_devices),
    )
    return found or tuple(_judge_order(plan, target))


def plan_layers(plan: Plan, graph: OpGraph) -> LayerPlan:
    """A plan that has passed the gate of a target with layers, in their words."""
    listed = list_layers(graph)
    assert listed is not None, "the gate has refused it"
    first = plan.stages.stages[0]
    replicas = len(first.devices)
    return LayerPlan(
        listed=listed,
        stages=place_stages(plan.stages, graph, listed),
        replicas=replicas,
        num_ranks=len({stage.devices for stage in plan.stages.stages}),
        micro_batch_size=first.micro_batch_size // replicas,
        num_micro_batches=plan.training.batch_size // first.micro_batch_size,
        zero=first.zero,
        tied=tuple(sorted(find_ties(graph, listed))),
    )


def judge_model(graph: OpGraph, target: Target, listed: LayerList | None) -> Iterator[Objection]:
    """What no plan of this model could say."""
    if not target.freezes and any(
        not weight.trainable and weight.kind == "parameter" for weight in graph.weights
    ):
        yield Objection(
            aspect="training",
            reason="the model has frozen weights, and it trains all",
            remedy="Use --to deepspeed or --to torch.",
        )
    if not target.layered:
        return
    remedy = "Use --to torch, which cuts between ops."
    if listed is None:
        yield Objection(
            aspect="layers", reason="the model has no list of repeated layers", remedy=remedy
        )
        return
    detour = find_detour(graph, listed)
    if detour:
        yield Objection(
            aspect="layers",
            reason=f"the layers {listed.container} are no chain: {detour}",
            remedy=remedy,
        )
    for name, places in sorted(find_ties(graph, listed).items()):
        if set(places) != {"entry", "exit"}:
            yield Objection(
                aspect="ties",
                reason=f"layers share no weights with others, and these share {name}",
                remedy=remedy,
            )
            break
    unlike = find_unlike(graph, listed) if target.alike and not detour else None
    if unlike:
        yield Objection(
            aspect="layers",
            reason=f"{unlike} is built otherwise than {listed.paths[0]}, and its layers are alike",
            remedy=remedy,
        )


def _judge_policy(policy: WeightPolicy) -> Iterator[Objection]:
    if policy.name != "flush":
        yield Objection(
            aspect="policy",
            reason=f"it would train with flush, not with weight policy {policy.name}",
            remedy="Search with --policy flush.",
        )


def _judge_training(training: Training, target: Target) -> Iterator[Objection]:
    precision = name_precision(training)
    if target.precisions and precision not in target.precisions:
        yield Objection(
            aspect="training",
            reason=f"it has no {precision} training",
            remedy="Search with --precision bfloat16 --mixed.",
        )
    if target.optimizers and training.optimizer not in target.optimizers:
        yield Objection(
            aspect="training",
            reason=f"it brings no optimizer {training.optimizer}",
            remedy="Search with --optimizer adamw.",
        )


def _judge_order(plan: Plan, target: Target) -> Iterator[Objection]:
    order, priced = read_order(plan), plan.prices
    splits = any(task.kind in "IW" for line in order.tasks_by_device for task in line)
    if splits and any(stage.recompute for stage in plan.stages.stages):
        yield Objection(
            aspect="order",
            reason="it would recompute twice for a backward that is split in two",
            remedy="Search with --schedule 1f1b, or with --recompute none.",
        )
    if not target.orders:
        return
    turns = len(priced.stages) > len({stage.devices for stage in priced.stages})
    name = "interleaved" if turns else "1f1b"
    if (
        name not in target.orders
        or build_order(priced, name).tasks_by_device != order.tasks_by_device
    ):
        yield Objection(
            aspect="order",
            reason=f"it orders micro-batches as {name}, and the plan is {plan.provenance.schedule}",
            remedy=f"Search with --schedule {name}.",
        )
    ranks = len({stage.devices for stage in priced.stages})
    if turns and not ranks <= measure_round(priced) <= priced.num_micro_batches(0):
        yield Objection(
            aspect="batch",
            reason=f"stages that take turns need {ranks} micro-batches or more, and the plan has"
            f" {priced.num_micro_batches(0)}",
            remedy="Search with a smaller --micro-batch.",
        )
