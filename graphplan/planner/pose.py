"""Posing the problem: costs for every op, groups of ops, and what the user wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from graphplan.coarsen import coarsen_graph
from graphplan.cost.estimate import estimate_table
from graphplan.cost.problem import make_problem
from graphplan.errors import InvalidOption
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.learned import LearnedCosts
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.problem import Problem
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.training import Training
from graphplan.planner.options import SearchOptions

SAMPLES_PER_DEVICE = 16
"""Samples of a batch for each device when the user names no batch."""
NODES_PER_DEVICE = 16
"""How finely a model is cut before the search: nodes for each device, within the bounds below."""
MIN_NODES, MAX_NODES = 128, 2048

Tables = Mapping[str, ProfileTable]


def pose_problem(
    graph: OpGraph, cluster: Cluster, options: SearchOptions, *, tables: Tables | None = None
) -> Problem:
    """The problem that the solvers are given; costs are estimated unless tables are given."""
    training = choose_training(graph, cluster, options)
    tables = tables or estimate_tables(graph, cluster, training)
    num_nodes = min(max(NODES_PER_DEVICE * len(cluster.devices), MIN_NODES), MAX_NODES)
    groups = coarsen_graph(
        graph,
        seconds_by_op=_sum_seconds(next(iter(tables.values()))),
        max_share=1 / num_nodes,
        together=(*find_modules(graph, options.keep), *options.together),
    )
    return make_problem(
        graph,
        tables,
        cluster,
        training,
        groups,
        micro_batch_sizes=options.micro_batch_sizes,
        recompute=options.recompute_choice,
        zero_levels=options.zero_levels,
        pins=options.pins,
    )


def find_modules(graph: OpGraph, patterns: Sequence[str]) -> list[tuple[str, ...]]:
    """The ops of every module whose path a pattern matches, part by part: `layers.*`."""
    groups: list[tuple[str, ...]] = []
    for pattern in patterns:
        depth = pattern.count(".") + 1
        ops_by_path: dict[str, list[str]] = {}
        for op in graph.ops:
            path = ".".join(op.module.split(".")[:depth])
            if path.count(".") == depth - 1 and fnmatchcase(path, pattern):
                ops_by_path.setdefault(path, []).append(op.name)
        if not ops_by_path:
            raise InvalidOption(
                f"No op belongs to a module {pattern!r}, which is to be kept whole.",
                remedy="`graphplan trace` lists the module of every op.",
            )
        groups += map(tuple, ops_by_path.values())
    return groups


def choose_training(graph: OpGraph, cluster: Cluster, options: SearchOptions) -> Training:
    """Batch, optimizer and precision; a batch that suits the devices when none is named."""
    batch = options.batch_size
    if batch is None:
        per_device = SAMPLES_PER_DEVICE if graph.batch == "dynamic" else graph.batch_size
        batch = per_device * (1 if graph.batch == "none" else len(cluster.devices))
    wanted = {
        "batch_size": batch,
        "optimizer": options.optimizer,
        "precision": options.precision,
        "mixed": options.mixed,
    }
    try:
        return msgspec.convert(wanted, Training)
    except msgspec.ValidationError as error:
        raise InvalidOption(
            f"These training options do not fit together: {error}.",
            remedy="`graphplan search --help` lists the optimizers and precisions.",
        ) from error


def estimate_tables(graph: OpGraph, cluster: Cluster, training: Training) -> Tables:
    """Roofline tables for every device type, at doubling batch sizes."""
    sizes = list_sizes(graph, training)
    return {
        kind.name: estimate_table(graph, kind, batch_sizes=sizes, precision=training.precision)
        for kind in cluster.types
    }


def predict_tables(
    graph: OpGraph, cluster: Cluster, training: Training, learned: LearnedCosts
) -> Tables:
    """Tables of a learned cost model for every device type, at doubling batch sizes."""
    from graphplan.cost.predict import TablePredictor

    predictor, sizes = TablePredictor(learned), list_sizes(graph, training)
    return {
        kind.name: predictor.predict(graph, kind, batch_sizes=sizes, precision=training.precision)
        for kind in cluster.types
    }


def list_sizes(graph: OpGraph, training: Training) -> tuple[int, ...]:
    """Doubling batch sizes up to the batch; one where the graph has no other."""
    if graph.batch != "dynamic":
        return (1,)
    return tuple(1 << i for i in range(training.batch_size.bit_length()))


def _sum_seconds(table: ProfileTable) -> dict[str, float]:
    """Seconds of every op, forward and backward, at the middle batch size."""
    middle = len(table.batch_sizes) // 2
    return {
        row.op: row.forward_s[middle] + row.input_grad_s[middle] + row.weight_grad_s[middle]
        for row in table.rows
    }
