"""Layers of a chain plan: which of a model's repeated blocks each stage holds.

Megatron and DeepSpeed think in a list of equal layers. A plan can be said in their words when its
stages form a chain with equal replicas and cut the model between layers only.
"""

from __future__ import annotations

import re
from collections import Counter

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan

_INDEXED = re.compile(r"(?P<container>(?:[^.]+\.)*?[^.]+)\.(?P<index>\d+)(?:\..*)?")


class LayerSplit(Noun, frozen=True, kw_only=True):
    """Layers by stage, in order."""

    container: str
    """Path of the module list, such as `transformer.h`."""
    num_layers: int
    layers_by_stage: tuple[tuple[int, ...], ...]
    replicas: int


def split_layers(plan: Plan, graph: OpGraph, *, target: str) -> LayerSplit:
    """The layers of every stage, or an InvalidOption that says why there are none."""
    _require_chain(plan, target)
    container = _find_container(graph, target)
    stage_of_layer: dict[int, set[int]] = {}
    for s, stage in enumerate(plan.stages.stages):
        for name in stage.ops:
            index = _layer_index(graph.op_by_name[name].module, container)
            if index is not None:
                stage_of_layer.setdefault(index, set()).add(s)
    for index, stages in sorted(stage_of_layer.items()):
        if len(stages) > 1:
            raise _refusal(
                target,
                f"layer {container}.{index} is cut between the stages"
                f" {', '.join(map(str, sorted(stages)))}",
                f"Search again with --keep '{container}.*', or use --to json.",
            )
    layers: list[list[int]] = [[] for _ in plan.stages.stages]
    for index, stages in sorted(stage_of_layer.items()):
        layers[min(stages)].append(index)
    return LayerSplit(
        container=container,
        num_layers=len(stage_of_layer),
        layers_by_stage=tuple(map(tuple, layers)),
        replicas=len(plan.stages.stages[0].devices),
    )


def _require_chain(plan: Plan, target: str) -> None:
    stages = plan.stages
    chain = {(s, s + 1) for s in range(len(stages.stages) - 1)}
    extra = sorted(set(stages.edges_by_ends) - chain)
    if extra:
        raise _refusal(
            target,
            f"the stages form a graph: stage {extra[0][0]} feeds stage {extra[0][1]}",
            "Plan a chain with --planner chain, or run the graph with `graphplan run`.",
        )
    if len({len(stage.devices) for stage in stages.stages}) > 1:
        raise _refusal(
            target,
            "its stages have different numbers of replicas",
            "Plan with --planner 2bw, whose stages are equally replicated.",
        )


def _find_container(graph: OpGraph, target: str) -> str:
    """The module list with the most ops."""
    counts = Counter(
        match["container"] for op in graph.ops if (match := _INDEXED.fullmatch(op.module))
    )
    if not counts:
        raise _refusal(
            target,
            "the model has no list of repeated layers",
            "Use --to json or --to torch.",
        )
    return max(counts, key=lambda name: (counts[name], name))


def _layer_index(module: str, container: str) -> int | None:
    rest = module.removeprefix(f"{container}.")
    head = rest.split(".", 1)[0]
    return int(head) if rest != module and head.isdigit() else None


def _refusal(target: str, reason: str, remedy: str) -> InvalidOption:
    return InvalidOption(f"This plan cannot be exported to {target}: {reason}.", remedy=remedy)
