"""Captured models of measured steps, and what a cut into equal runs of layers takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphplan.cost.estimate import estimate_table
from graphplan.cost.model import CostModel
from graphplan.cost.problem import make_problem
from graphplan.files import read_noun, write_noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Prediction
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.training import Training
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.planner.collect import schedule_prices

KEPT = Path(__file__).parents[1] / "build" / "steps"
_LAYER = re.compile(r"\.(?:h|layers|layer)\.(\d+)")


def capture_model(
    name: str, build: Callable[[], Any], list_inputs: Callable[[int], Mapping[str, Any]]
) -> OpGraph:
    """The captured graph of a model, from the folder of captures where it is there."""
    path = KEPT / f"{name}.json"
    if not path.exists():
        import torch

        from graphplan.frontend import trace_module

        with torch.device("meta"):
            model = build().train()
            decoder = getattr(getattr(model, "model", None), "decoder", None)
            if decoder is not None:
                decoder.training = False  # OPT drops layers by the value of a random number.
            captured = trace_module(model, list_inputs)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_noun(captured.graph, path)
    return read_noun(path, OpGraph)


def simulate_cut(
    graph: OpGraph,
    cluster: Cluster,
    training: Training,
    num_stages: int,
    micro_batch: int,
    *,
    num_chunks: int = 1,
) -> tuple[PricedStages, Prediction]:
    """Equal runs of layers on equal shares of the devices, `num_chunks` on each in turn."""
    groups = cut_layers(graph, num_stages * num_chunks)
    sizes = [1 << i for i in range(micro_batch.bit_length())]
    tables = {
        kind.name: estimate_table(graph, kind, batch_sizes=sizes, precision=training.precision)
        for kind in cluster.types
    }
    problem = make_problem(
        graph, tables, cluster, training, groups, micro_batch_sizes=[micro_batch]
    )
    each = len(cluster.devices) // num_stages
    shares = [tuple(range(i * each, (i + 1) * each)) for i in range(num_stages)]
    parts = [
        Part(nodes=(i,), devices=shares[i % num_stages], micro_batch_size=micro_batch)
        for i in range(num_stages * num_chunks)
    ]
    schedule = "interleaved" if num_chunks > 1 else "1f1b"
    priced = CostModel(problem).price_stages(assemble_stages(problem, parts))
    return priced, schedule_prices(priced, schedule=schedule).prediction


def cut_layers(graph: OpGraph, num_stages: int) -> list[tuple[str, ...]]:
    """Ops by stage, in their order: a stage ends where its last layer does."""
    numbers = [_LAYER.search(f".{op.module}") for op in graph.ops]
    count = 1 + max(int(found[1]) for found in numbers if found)
    groups: list[list[str]] = [[] for _ in range(num_stages)]
    current = 0
    for op, found in zip(graph.ops, numbers, strict=True):
        if found:
            current = max(current, int(found[1]) * num_stages // count)
        groups[current].append(op.name)
    return [tuple(group) for group in groups]
