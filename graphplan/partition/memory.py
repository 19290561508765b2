"""Recomputation and shared states where memory asks for them: what is chosen after the cut.

A level of ZeRO is chosen for every stage with replicas when a draft becomes a stage graph: the
fastest one, and where the stages of a device do not fit in 1F1B order, the fastest with which they
do; where one change is not enough, first what costs the least time for every byte that it saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from graphplan.cost.model import CostModel
from graphplan.nouns.prices import PricedStages, StagePrice
from graphplan.nouns.stages import Stage, StageGraph, ZeroLevel
from graphplan.partition.assemble import Part, assemble_stages


def choose_recompute(model: CostModel, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts whose activations do not fit in 1F1B order recompute them, if the problem allows it."""
    if not model.problem.allow_recompute or all(part.recompute for part in parts):
        return tuple(parts)
    graph = choose_sharing(model, assemble_stages(model.problem, parts))
    priced = model.price_stages(graph)
    crowded = {
        op
        for s, stage in enumerate(graph.stages)
        if needed_bytes(priced, s) > room_bytes(priced, s)
        for op in stage.ops
    }
    return tuple(
        msgspec.structs.replace(part, recompute=True)
        if model.problem.nodes[part.nodes[0]].ops[0] in crowded
        else part
        for part in parts
    )


def choose_sharing(model: CostModel, graph: StageGraph) -> StageGraph:
    """The stage graph with a level of ZeRO for every stage that has replicas."""
    if model.problem.zero_levels == (0,):
        return graph
    prices = [_price_levels(model, stage) for stage in graph.stages]
    chosen = [min(each, key=lambda level: (_step_s(model, each[level]), level)) for each in prices]
    groups: dict[tuple[int, ...], list[int]] = {}
    for s, stage in enumerate(graph.stages):
        groups.setdefault(stage.devices, []).append(s)
    for devices, hosted in groups.items():
        room = min(model.problem.cluster.devices[device].memory_bytes for device in devices)
        while (lacking := _needed_together(model, graph, prices, chosen, hosted) - room) > 0:
            better = list(_list_savings(model, prices, chosen, hosted))
            if not better:
                break
            enough = [
                (seconds, s, level) for seconds, saved, s, level in better if saved >= lacking
            ]
            by_byte = [(seconds / saved, s, level) for seconds, saved, s, level in better]
            _, s, level = min(enough or by_byte)
            chosen[s] = level
    stages = (
        msgspec.structs.replace(stage, zero=level)
        for stage, level in zip(graph.stages, chosen, strict=True)
    )
    return msgspec.structs.replace(graph, stages=tuple(stages))


def set_level(graph: StageGraph, level: ZeroLevel) -> StageGraph:
    """The stage graph with this level of ZeRO wherever there are replicas."""
    stages = (
        msgspec.structs.replace(stage, zero=level if len(stage.devices) > 1 else 0)
        for stage in graph.stages
    )
    return msgspec.structs.replace(graph, stages=tuple(stages))


Levels = dict[ZeroLevel, StagePrice]


def _price_levels(model: CostModel, stage: Stage) -> Levels:
    levels: tuple[ZeroLevel, ...] = model.problem.zero_levels if len(stage.devices) > 1 else (0,)
    return {
        level: model.price_nodes(
            model.stage_nodes(stage),
            stage.devices,
            stage.micro_batch_size,
            recompute=bool(stage.recompute),
            zero=level,
        )
        for level in levels
    }


def _step_s(model: CostModel, price: StagePrice) -> float:
    """Seconds of a batch on the stage alone."""
    count = model.problem.training.batch_size // price.micro_batch_size
    return count * (price.forward_s + price.backward_s) + price.closing_s


def _needed_together(
    model: CostModel,
    graph: StageGraph,
    prices: Sequence[Levels],
    chosen: Sequence[ZeroLevel],
    hosted: Sequence[int],
) -> int:
    """Bytes of the stages of a device, h + 1 micro-batches of each in flight."""
    needed = most = 0
    for s in hosted:
        price = prices[s][chosen[s]]
        count = model.problem.training.batch_size // price.micro_batch_size
        needed += price.fixed_bytes + min(count, graph.heights[s] + 1) * price.saved_bytes
        most = max(most, price.workspace_bytes)
    return needed + most


def _list_savings(
    model: CostModel,
    prices: Sequence[Levels],
    chosen: Sequence[ZeroLevel],
    hosted: Sequence[int],
) -> Iterator[tuple[float, int, int, ZeroLevel]]:
    """Further seconds, and bytes, of each level that needs fewer bytes than the chosen one."""
    for s in hosted:
        now = prices[s][chosen[s]]
        for level, price in prices[s].items():
            saved = now.fixed_bytes - price.fixed_bytes
            if saved > 0:
                yield _step_s(model, price) - _step_s(model, now), saved, s, level


def needed_bytes(priced: PricedStages, stage: int) -> int:
    """Peak of a stage that is alone on its devices, h + 1 micro-batches in flight (1F1B)."""
    price = priced.stages[stage]
    in_flight = min(priced.num_micro_batches(stage), priced.heights[stage] + 1)
    return price.fixed_bytes + price.workspace_bytes + in_flight * price.saved_bytes


def room_bytes(priced: PricedStages, stage: int) -> int:
    """Memory of the smallest device of a stage."""
    return min(priced.memory_bytes_by_device[device] for device in priced.stages[stage].devices)
