"""Legal op -> stage maps: random ones, and chains of about equal length."""

from __future__ import annotations

import random
from collections.abc import Mapping

import networkx

from graphplan.nouns.opgraph import OpGraph


def merge_inseparable(graph: OpGraph) -> networkx.DiGraph:
    """The DAG of ops in which those that must stay together are one node, with all between them.

    Results of one op, tensors of unknown size, and the users of a buffer that some op writes.
    """
    arcs = networkx.DiGraph()
    arcs.add_nodes_from(op.name for op in graph.ops)
    users: dict[str, list[str]] = {}
    written = {name for op in graph.ops for name in op.mutates}
    for op in graph.ops:
        for name in written.intersection(op.weights):
            users.setdefault(name, []).append(op.name)
    for edge in graph.edges:
        arcs.add_edge(edge.src, edge.dst)
        if edge.spec is None:
            arcs.add_edge(edge.dst, edge.src)
    for names in users.values():
        arcs.add_edges_from(zip(names, names[1:] + names[:1], strict=True))
    return networkx.condensation(arcs)


def random_cut(graph: OpGraph, num_stages: int, seed: int) -> dict[str, int]:
    """A random topological order, cut at random places, with the stages renumbered."""
    rng = random.Random(seed)
    merged = merge_inseparable(graph)
    key = {node: rng.random() for node in merged}
    ends = sorted(rng.choices(range(len(merged) + 1), k=num_stages - 1))
    return _cut_order(merged, key, ends, rng.sample(range(num_stages), num_stages))


def chain_cut(graph: OpGraph, num_stages: int) -> dict[str, int]:
    """The order of the model, cut into about equal numbers of ops."""
    position = {op.name: index for index, op in enumerate(graph.ops)}
    merged = merge_inseparable(graph)
    key = {node: min(map(position.__getitem__, merged.nodes[node]["members"])) for node in merged}
    ends = [len(merged) * stage // num_stages for stage in range(1, num_stages)]
    return _cut_order(merged, key, ends, list(range(num_stages)))


def _cut_order(
    merged: networkx.DiGraph, key: Mapping[int, float], ends: list[int], numbers: list[int]
) -> dict[str, int]:
    order = networkx.lexicographical_topological_sort(merged, key=key.__getitem__)
    stage_by_op: dict[str, int] = {}
    for position, node in enumerate(order):
        stage = numbers[sum(position >= end for end in ends)]
        stage_by_op |= dict.fromkeys(merged.nodes[node]["members"], stage)
    return stage_by_op
