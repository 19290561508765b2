"""Coarsening: group ops that must or should stay together, without ever creating a cycle.

*Must*: the results of a multi-output op (getitem), scalars computed from tensor values, all ops
around a buffer that one of them writes, and what the user wants together. When such ops enclose
others, the enclosed ones join (the group is closed to be convex).

*Should*: two neighbours merge when the producer has no other consumer or the consumer no other
producer. Then every path between them is the edge itself, so that the merged graph stays acyclic.
Free ops (views) always merge this way; others while the group stays within `max_share` of all work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import networkx

from graphplan.errors import InvalidOption
from graphplan.nouns.opgraph import OpGraph

Groups = tuple[tuple[str, ...], ...]


def coarsen_graph(
    graph: OpGraph,
    *,
    seconds_by_op: Mapping[str, float] | None = None,
    max_share: float = 0.0,
    together: Sequence[Sequence[str]] = (),
) -> Groups:
    """Groups of op names in topological order; without times only free ops are merged."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    for name in (name for group in together for name in group):
        if name not in position:
            raise InvalidOption(
                f"The op {name!r}, which is to be kept together with others, does not exist.",
                remedy="`graphplan trace` lists the names of the ops.",
            )
    label = _close_groups(graph, position, together)
    work = _sum_work(graph, label, seconds_by_op)
    merged = _merge_neighbours(_build_quotient(graph, position, label), work, max_share)
    members: dict[int, list[str]] = {}
    for op in graph.ops:
        members.setdefault(merged[label[position[op.name]]], []).append(op.name)
    return _sort_groups(graph, members)


def _close_groups(
    graph: OpGraph, position: Mapping[str, int], together: Sequence[Sequence[str]]
) -> list[int]:
    """A label for each op; equal labels must stay together, the quotient is acyclic."""
    pairs = [(a, b) for group in together for a, b in itertools.pairwise(group)]
    pairs += _tie_results(graph)
    pairs += _tie_written_buffers(graph)
    arcs = networkx.DiGraph()
    arcs.add_nodes_from(range(len(graph.ops)))
    arcs.add_edges_from((position[edge.src], position[edge.dst]) for edge in graph.edges)
    arcs.add_edges_from((position[a], position[b]) for a, b in pairs)
    arcs.add_edges_from((position[b], position[a]) for a, b in pairs)
    label = [0] * len(graph.ops)
    for component in networkx.strongly_connected_components(arcs):
        first = min(component)
        for i in component:
            label[i] = first
    return label


def _tie_results(graph: OpGraph) -> Iterable[tuple[str, str]]:
    """Ops without a tensor of their own stay with whoever reads their result."""
    for op in graph.ops:
        for name in op.inputs:
            producer = graph.op_by_name.get(name)
            if producer is not None and producer.output is None:
                yield name, op.name


def _tie_written_buffers(graph: OpGraph) -> Iterable[tuple[str, str]]:
    """All users of a buffer that some op writes stay together."""
    written = {name for op in graph.ops for name in op.mutates}
    first_user: dict[str, str] = {}
    for op in graph.ops:
        for weight in written.intersection((*op.weights, *op.mutates)):
            yield first_user.setdefault(weight, op.name), op.name


def _sum_work(
    graph: OpGraph, label: Sequence[int], seconds_by_op: Mapping[str, float] | None
) -> dict[int, float]:
    """Work by label; without times, a free op counts 0 and any other 1."""
    work: dict[int, float] = dict.fromkeys(label, 0.0)
    for i, op in enumerate(graph.ops):
        if seconds_by_op is not None:
            work[label[i]] += seconds_by_op.get(op.name, 0.0)
        else:
            work[label[i]] += 0.0 if op.alias is not None or op.size is None else 1.0
    return work


class _Quotient:
    """A DAG of labels with contraction of safe edges; the smaller neighbourhood is moved."""

    def __init__(self, labels: Iterable[int]) -> None:
        self.before: dict[int, set[int]] = {label: set() for label in labels}
        self.after: dict[int, set[int]] = {label: set() for label in self.before}
        self.parent = {label: label for label in self.before}

    def find(self, label: int) -> int:
        while self.parent[label] != label:
            self.parent[label] = label = self.parent[self.parent[label]]
        return label

    def contract(self, src: int, dst: int) -> int:
        """Merge the ends of an edge; returns the label that stays."""
        self.after[src].discard(dst)
        self.before[dst].discard(src)
        size = [len(self.before[v]) + len(self.after[v]) for v in (src, dst)]
        kept, gone = (src, dst) if size[0] >= size[1] else (dst, src)
        for v in self.before.pop(gone):
            self.after[v].discard(gone)
            if v != kept:
                self.after[v].add(kept)
                self.before[kept].add(v)
        for v in self.after.pop(gone):
            self.before[v].discard(gone)
            if v != kept:
                self.before[v].add(kept)
                self.after[kept].add(v)
        self.parent[gone] = kept
        return kept


def _build_quotient(graph: OpGraph, position: Mapping[str, int], label: Sequence[int]) -> _Quotient:
    quotient = _Quotient(label)
    for edge in graph.edges:
        src, dst = label[position[edge.src]], label[position[edge.dst]]
        if src != dst:
            quotient.after[src].add(dst)
            quotient.before[dst].add(src)
    return quotient


def _merge_neighbours(
    quotient: _Quotient, work: dict[int, float], max_share: float
) -> dict[int, int]:
    """Contract safe edges until none is left that is free or within the limit."""
    limit = max_share * sum(work.values())
    waiting = sorted(quotient.before, reverse=True)
    while waiting:
        v = waiting.pop()
        edge = _choose_edge(quotient, work, v, limit) if v in quotient.before else None
        if edge is None:
            continue
        src, dst = edge
        # Only neighbours of both ends lose an edge, and may thereby become safe to merge.
        waiting += sorted(quotient.before[src] & quotient.before[dst], reverse=True)
        waiting += sorted(quotient.after[src] & quotient.after[dst], reverse=True)
        kept = quotient.contract(src, dst)
        work[kept] = work[src] + work[dst]
        waiting.append(kept)
    return {label: quotient.find(label) for label in quotient.parent}


def _choose_edge(
    quotient: _Quotient, work: Mapping[int, float], v: int, limit: float
) -> tuple[int, int] | None:
    """The smaller safe merger of v; its consumer wins ties, so that views follow their readers."""
    after, before = quotient.after[v], quotient.before[v]
    candidates = [(v, next(iter(after)))] if len(after) == 1 else []
    candidates += [(next(iter(before)), v)] if len(before) == 1 else []
    return min(
        (
            (src, dst)
            for src, dst in candidates
            if 0 in (work[src], work[dst]) or work[src] + work[dst] <= limit
        ),
        key=lambda edge: (work[edge[0]] + work[edge[1]], edge[0] != v),
        default=None,
    )


def _sort_groups(graph: OpGraph, members: Mapping[int, Sequence[str]]) -> Groups:
    """Groups in a topological order, the earliest first op first among those that are ready."""
    label_of = {name: label for label, names in members.items() for name in names}
    rank = {op.name: i for i, op in enumerate(graph.ops)}
    quotient = networkx.DiGraph()
    quotient.add_nodes_from(members)
    quotient.add_edges_from(
        (label_of[edge.src], label_of[edge.dst])
        for edge in graph.edges
        if label_of[edge.src] != label_of[edge.dst]
    )
    order = networkx.lexicographical_topological_sort(
        quotient, key=lambda label: rank[members[label][0]]
    )
    return tuple(tuple(members[label]) for label in order)
