"""Recomputation where memory asks for it: the choice that most solvers make after their cut."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphplan.cost.model import CostModel
from graphplan.nouns.prices import PricedStages
from graphplan.partition.assemble import Part, assemble_stages


def choose_recompute(model: CostModel, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts whose activations do not fit in 1F1B order recompute them, if the problem allows it."""
    if not model.problem.allow_recompute or all(part.recompute for part in parts):
        return tuple(parts)
    graph = assemble_stages(model.problem, parts)
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


def needed_bytes(priced: PricedStages, stage: int) -> int:
    """Peak of a stage that is alone on its devices, h + 1 micro-batches in flight (1F1B)."""
    price = priced.stages[stage]
    in_flight = min(priced.num_micro_batches(stage), priced.heights[stage] + 1)
    return price.fixed_bytes + price.workspace_bytes + in_flight * price.saved_bytes


def room_bytes(priced: PricedStages, stage: int) -> int:
    """Memory of the smallest device of a stage."""
    return min(priced.memory_bytes_by_device[device] for device in priced.stages[stage].devices)
