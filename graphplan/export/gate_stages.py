"""The part of the gate that needs no finished plan: what a target cannot say of stages.

`search --for` asks these questions of every draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphplan.export.layers import (
    LayerList,
    StageLayers,
    find_ties,
    place_stages,
)
from graphplan.export.targets import Target
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.stages import Stage, StageGraph


class Objection(Noun, frozen=True, kw_only=True):
    """One thing that a target cannot say."""

    aspect: str
    """Of the plan: policy, shape, layers, replicas, placement, zero, recompute, ties, batch, order,
    training."""
    reason: str
    remedy: str


def judge_stages(
    stages: StageGraph,
    target: Target,
    graph: OpGraph,
    listed: LayerList | None,
    *,
    num_devices: int,
) -> Iterator[Objection]:
    """What the target cannot say of these stages, whatever their order; `listed` are the graph's
    layers."""
    yield from _judge_devices(stages, target, num_devices)
    yield from _judge_shards(stages, target)
    yield from _judge_backward(stages, graph)
    if target.layered and listed is not None:
        yield from _judge_cuts(stages, target, graph, listed)
    elif target.recompute == "stages":
        yield from _judge_whole_recompute(stages.stages)


def _judge_devices(stages: StageGraph, target: Target, num_devices: int) -> Iterator[Objection]:
    counts = {len(stage.devices) for stage in stages.stages}
    groups = list(dict.fromkeys(stage.devices for stage in stages.stages))
    used = {device for group in groups for device in group}
    if len(counts) > 1 or (not target.replicated and counts != {1}):
        several = "replicas of single stages" if target.replicated else "replicas"
        yield Objection(
            aspect="replicas",
            reason=f"it has no {several}, and the stages have {_join(sorted(counts))}",
            remedy="Search with --planner 2bw (equal replicas) or equal (none).",
        )
        return
    if len({stage.micro_batch_size for stage in stages.stages}) > 1:
        yield Objection(
            aspect="batch",
            reason="all stages must have one micro-batch size",
            remedy="Search with one --micro-batch.",
        )
    width = counts.pop()
    if any(stage.micro_batch_size % width for stage in stages.stages):
        yield Objection(
            aspect="batch",
            reason=f"{width} replicas do not divide a micro-batch of"
            f" {stages.stages[0].micro_batch_size}",
            remedy=f"Search with a --micro-batch that {width} divides.",
        )
    if len(used) < num_devices:
        yield Objection(
            aspect="placement",
            reason=f"every rank must have a stage, and {num_devices - len(used)} of {num_devices}"
            " devices have none",
            remedy=f"Search with --gpus {len(used)}.",
        )
        return
    if target.placing != "anywhere":
        yield from _judge_placing(stages, target, len(groups), width)


def _judge_placing(
    stages: StageGraph, target: Target, ranks: int, width: int
) -> Iterator[Objection]:
    loop = [
        tuple(range(s % ranks * width, (s % ranks + 1) * width)) for s in range(len(stages.stages))
    ]
    placed = [tuple(sorted(stage.devices)) for stage in stages.stages]
    if target.placing == "own" and len(placed) > ranks:
        yield Objection(
            aspect="placement",
            reason="every device has one stage, and here some have several",
            remedy="Search with --schedule 1f1b.",
        )
    elif placed != loop or len(placed) % ranks:
        s = next((s for s, each in enumerate(placed) if each != loop[s]), len(placed) - 1)
        yield Objection(
            aspect="placement",
            reason=f"its stages go round the {ranks} pipeline ranks in turn, and stage {s} is on"
            f" device {_join(placed[s])}",
            remedy="Search with --schedule 1f1b: one stage on each device.",
        )


def _judge_shards(stages: StageGraph, target: Target) -> Iterator[Objection]:
    levels = sorted({stage.zero for stage in stages.stages})
    if len(levels) > 1 or levels[0] not in target.zero:
        yield Objection(
            aspect="zero",
            reason=f"it shards at level {_join(target.zero)} and all stages alike, and the plan"
            f" has level {_join(levels)}",
            remedy="Search with --zero 0.",
        )


def _judge_backward(stages: StageGraph, graph: OpGraph) -> Iterator[Objection]:
    for s, stage in enumerate(stages.stages):
        if not any(graph.op_by_name[name].needs_backward for name in stage.ops):
            yield Objection(
                aspect="shape",
                reason=f"stage {s} has no backward, and every rank runs one",
                remedy="Search with fewer --gpus, so that stages are larger.",
            )


def _judge_cuts(
    stages: StageGraph, target: Target, graph: OpGraph, listed: LayerList
) -> Iterator[Objection]:
    """Where a list of layers may be cut, and what of it may be recomputed and tied."""
    held = place_stages(stages, graph, listed)
    keep = f"Search with --keep '{listed.container}.*'."
    where: dict[int, list[int]] = {}
    for s, each in enumerate(held):
        for layer in each.layers:
            where.setdefault(layer, []).append(s)
    cut = next((layer for layer, found in sorted(where.items()) if len(found) > 1), None)
    if cut is not None:
        yield Objection(
            aspect="layers",
            reason=f"layer {listed.paths[cut]} is cut between the stages {_join(where[cut])}",
            remedy=keep,
        )
        return
    order = [layer for each in held for layer in each.layers]
    if order != sorted(order):
        yield Objection(
            aspect="shape",
            reason="its stages follow the order of the layers, and these do not",
            remedy="Search with --planner chain.",
        )
    for edge in stages.edges:
        if edge.dst != edge.src + 1 and listed.place_by_op.get(edge.value, "free") != "free":
            yield Objection(
                aspect="shape",
                reason=f"its stages are a chain, and stage {edge.src} feeds stage {edge.dst}",
                remedy="Search with --planner chain.",
            )
            break
    yield from _judge_ends(held, keep)
    yield from _judge_recompute(held, target)
    if len(held) > 1:
        yield from _judge_ties(target, graph, listed)


def _judge_ends(held: tuple[StageLayers, ...], keep: str) -> Iterator[Objection]:
    """What stands around the layers belongs to the first and the last stage."""
    last = len(held) - 1
    for s, each in enumerate(held):
        if each.has_entry and s > 0:
            part, place = "what comes before the layers", "first"
        elif each.has_exit and s < last:
            part, place = "the head", "last"
        elif each.layers or each.has_entry or each.has_exit:
            continue
        else:
            yield Objection(aspect="layers", reason=f"stage {s} holds no layer", remedy=keep)
            continue
        yield Objection(
            aspect="layers",
            reason=f"{part} belongs to the {place} stage, and stage {s} has some of it",
            remedy="Search with --keep for the modules around the layers.",
        )


def _judge_recompute(held: tuple[StageLayers, ...], target: Target) -> Iterator[Objection]:
    problem = None
    if any(each.again == "part" for each in held):
        problem = "it recomputes whole layers, and the plan parts of them"
    elif target.recompute == "stages" and any(each.again == "layers" for each in held):
        problem = "a stage recomputes everything or nothing, and the plan some layers"
    elif target.recompute == "all" and any(each.again_layers for each in held):
        if any(each.again_layers != each.layers for each in held):
            problem = "it recomputes all layers or none, and the plan some of them"
    elif target.recompute == "first" and count_first(held) is None:
        problem = "all its stages recompute as many layers, their first ones, and the plan others"
    if problem:
        yield Objection(
            aspect="recompute", reason=problem, remedy="Search with --recompute none or full."
        )


def count_first(held: tuple[StageLayers, ...]) -> int | None:
    """n, when every stage recomputes its first n layers, or all if it has fewer; else None."""
    most = max(len(each.again_layers) for each in held)
    firsts = (each.layers[: min(most, len(each.layers))] for each in held)
    return (
        most if all(a == each.again_layers for a, each in zip(firsts, held, strict=True)) else None
    )


def _judge_whole_recompute(stages: tuple[Stage, ...]) -> Iterator[Objection]:
    for s, stage in enumerate(stages):
        if stage.recompute not in ((), stage.ops):
            yield Objection(
                aspect="recompute",
                reason=f"a stage recomputes everything or nothing, and stage {s} some ops",
                remedy="Search with --recompute none or full.",
            )
            return


def _judge_ties(target: Target, graph: OpGraph, listed: LayerList) -> Iterator[Objection]:
    tied = sorted(find_ties(graph, listed))
    if target.ties == "none" and tied:
        yield Objection(
            aspect="ties",
            reason=f"its stages share no weights, and the first and the last one share {tied[0]}",
            remedy="Untie the weights, or plan one stage with --planner data-parallel.",
        )


def _join(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers)) if len(numbers) < 3 else ", ".join(map(str, numbers))
