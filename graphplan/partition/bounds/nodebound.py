"""Bounds from single nodes: how many replicas may share one, and what that costs all devices.

Notation and the memory rule are those of bound.py. A stage with node v on r devices, which see n
samples of each of M = B / (n r) micro-batches, reduces the gradients of v's weights over the r
devices after its last backward and updates them. The devices are busy meanwhile, for at least

    c_v(r) = the least reduction of v's own weights over any r devices + their update,

as more weights in a stage take longer, and other placements do not take less.

Node. Before the first forward of v lies the longest forward path to v, after its last input
    gradient the longest way back: T >= t_v(n, r) = head + max(M (f+i+w) + c_v(r), M (f+i) + tail),
    the least over all legal (n, r). Nodes of head or tail that share v's stage are part of that
    stage's time at least once, so that nothing is counted twice. A pinned node has r = 1.

Capacity. A plan of T seconds runs every node with some t_v(n, r) <= T, and all devices together
    have no more than their time: with l_k and a_v as in bound.py, and c'_v(r) for c_v(r) without
    latencies, which the nodes of a stage share,
    T >= C(T) = sum_v min { min_k l_k a_v(k, n) + r c'_v(r) min_k l_k : t_v(n, r) <= T }.
    The nodes that are too heavy for few devices must be replicated, and pay for it. C falls as T
    grows, so that the least T with C(T) <= T, found by bisection from below, is a bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy

from graphplan.cost.allreduce import least_allreduce_time
from graphplan.cost.model import CostModel
from graphplan.nouns.plan import Bound
from graphplan.nouns.problem import Floats, Problem

NUM_HALVINGS = 24
"""Of the interval in which the bound by capacity lies."""
LARGE_BYTES = 1 << 50
"""Amounts of weights whose difference shows what a byte takes without latencies."""


@dataclasses.dataclass(frozen=True)
class NodeCosts:
    """Arrays [size, node], the best of all device types; infinity where the node does not fit."""

    work: Floats
    """l_k a_v(k, n)"""
    forward: Floats
    """f"""
    through: Floats
    """f + i"""
    whole: Floats
    """f + i + w"""
    inputs: Floats
    """[node]: i at the best size"""
    weights: Floats
    """[node]: w at the best size"""
    update_s: float
    """Memory traffic of all updates, weighed with l_k."""
    least_share: float
    """min_k l_k"""

    @property
    def least_work(self) -> Floats:
        """By node."""
        least: Floats = self.work.min(axis=0)
        return least


def bound_nodes(
    problem: Problem, costs: NodeCosts, gradients: Sequence[set[int]], *, local_steps: int
) -> list[Bound]:
    """The heaviest node with the ways before and after it, and what all devices have time for."""
    splits = _list_splits(problem)
    heads, tails = _measure_ways(problem, costs, gradients)
    steps = numpy.empty((len(splits), problem.num_nodes))
    spent = numpy.empty_like(steps)
    free = numpy.array([v not in problem.pins for v in range(problem.num_nodes)])
    closing_by_count = {
        count: _measure_closing(problem, count, local_steps) for count in {r for _, r in splits}
    }
    for i, (size, replicas) in enumerate(splits):
        index = problem.size_index[size // replicas]
        count = problem.training.batch_size // size
        closing, moving = closing_by_count[replicas]
        through, whole = count * costs.through[index], count * costs.whole[index]
        steps[i] = heads + numpy.maximum(whole + closing, through + tails)
        if replicas > 1:
            steps[i, ~free] = math.inf
        spent[i] = costs.work[index] + replicas * costs.least_share * moving
    least = steps.min(axis=0)
    v = int(least.argmax())
    node = Bound(
        step_s=float(least[v]),
        proof=f"node {problem.nodes[v].name!r} on the devices that may share it",
    )
    return [node, _bound_capacity(problem, steps, spent, node.step_s)]


def _bound_capacity(problem: Problem, steps: Floats, spent: Floats, low: float) -> Bound:
    """The least time in which all devices can do what nodes with so little time need."""

    def need(step_s: float) -> float:
        return float(numpy.where(steps <= step_s, spent, math.inf).min(axis=0).sum())

    high = need(low)
    if high > low and math.isfinite(high):
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if need(middle) > middle:
                low = middle
            else:
                high = middle
    return Bound(
        step_s=low,
        proof=f"all work and the reductions that so short a step needs, over"
        f" {len(problem.cluster.devices)} devices",
    )


def _measure_closing(problem: Problem, count: int, local_steps: int) -> tuple[Floats, Floats]:
    """By node, c_v and c'_v for so many replicas."""
    cost, cluster = CostModel(problem), problem.cluster
    trained = numpy.where(problem.needs_backward, problem.trained_elements, 0)
    amounts, place = numpy.unique(trained, return_inverse=True)
    used = [cluster.types[kind] for kind in set(problem.type_index_by_device)]
    large, larger = (least_allreduce_time(cluster, count, k * LARGE_BYTES) for k in (1, 2))
    rate = (larger - large) / LARGE_BYTES
    closing, moving = [], []
    for elements in amounts.tolist():
        num_bytes = elements * problem.element_bytes
        update_s = min(cost.update_time(kind, elements) for kind in used)
        launch_s = max(kind.launch_s for kind in used)
        reduce_s = least_allreduce_time(cluster, count, num_bytes)
        closing.append(reduce_s / local_steps + update_s)
        moving.append(rate * num_bytes / local_steps + max(0.0, update_s - launch_s))
    return numpy.array(closing)[place], numpy.array(moving)[place]


def _list_splits(problem: Problem) -> list[tuple[int, int]]:
    """Legal pairs of micro-batch size and replicas."""
    return [
        (size, size // samples)
        for size in problem.micro_batch_sizes
        for samples in problem.sample_sizes
        if size % samples == 0 and size // samples <= len(problem.cluster.devices)
    ]


def _measure_ways(
    problem: Problem, costs: NodeCosts, gradients: Sequence[set[int]]
) -> tuple[Floats, Floats]:
    """By node, the longest forward path before it and the longest way back after its gradient."""
    forward = costs.forward.min(axis=0).tolist()
    inputs, weights = costs.inputs.tolist(), costs.weights.tolist()
    heads, tails = [0.0] * problem.num_nodes, [0.0] * problem.num_nodes
    for v in range(problem.num_nodes):
        for u in problem.successors[v]:
            heads[u] = max(heads[u], heads[v] + forward[v])
        for u in gradients[v]:
            tails[u] = max(tails[u], inputs[v] + max(weights[v], tails[v]))
    return numpy.array(heads), numpy.array(tails)
