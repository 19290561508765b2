"""Bounds from single nodes: how many replicas may share one, and what that costs all devices.

Notation and the memory rule are those of bound.py. A stage with node v on r devices, which see n
samples of each of M = B / (n r) micro-batches, reduces the gradients of v's weights over the r
devices when the last of them is complete, and updates them. That takes at least

    c_v(r) = the least reduction of v's own weights over any r devices + their update,

or, where replicas may share their states, half of such a reduction and the update of a share,
as more weights in a bucket take longer, and other placements do not take less. The devices may do
something else while they reduce; of their time only the update is certain.

Node. Before the first forward of v lies head_v(m), after its last input gradient tail_v(m), see
    ways.py, for the micro-batch size m = n r that the replicas of v imply: T >= t_v(n, r) = head +
    max(M (f+i+w) + c_v(r), M (f+i) + tail), the least over all legal (n, r). The runtime's time for
    a task comes on top, once for a forward and once for a backward at least (the last one may run
    beside the tail). Nodes of head or tail that share v's stage run before or after v inside its
    tasks, so that nothing is counted twice. A pinned node has r = 1.

    A reduction may run beside the backwards of other nodes, but not beside the one that it waits
    for, so that it counts here; it is no time of the devices, so that it does not below.

Capacity. A plan of T seconds runs every node with some t_v(n, r) <= T, and all devices together
    have no more than their time: with l_k and a_v as in bound.py, and c'_v(r) for the update
    without its launch, which the nodes of a stage share,
    T >= C(T) = sum_v min { min_k l_k a_v(k, n) + r c'_v(r) min_k l_k : t_v(n, r) <= T }.
    t_v(n, r) is at least the bound of v's group of devices, see groupbound.py.
    The nodes that are too heavy for few devices must be replicated, and pay for it. C falls as T
    grows, so that the least T with C(T) <= T, found by bisection from below, is a bound.
"""

from __future__ import annotations

import math

import numpy

from graphplan.cost.allreduce import least_allreduce_time
from graphplan.cost.sums import time_update
from graphplan.nouns.plan import Bound
from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.bounds.costs import NodeCosts
from graphplan.partition.bounds.groupbound import bound_group, bound_starts
from graphplan.partition.bounds.ways import find_gradients, measure_heads, measure_tails

NUM_HALVINGS = 24
"""Of the interval in which the bound by capacity lies."""


def bound_nodes(problem: Problem, costs: NodeCosts, *, local_steps: int) -> list[Bound]:
    """The heaviest node with the ways before and after it, and what all devices have time for."""
    splits = _list_splits(problem)
    heads = measure_heads(problem, costs)
    tails = measure_tails(problem, costs, find_gradients(problem))
    steps = numpy.empty((len(splits), problem.num_nodes))
    spent = numpy.empty_like(steps)
    free = numpy.array([v not in problem.pins for v in range(problem.num_nodes)])
    replicas = numpy.array([r for _, r in splits])
    tasks = numpy.where(problem.needs_backward, 2, 1) * costs.task_s
    closing_by_count = {
        int(count): _measure_closing(problem, int(count), local_steps) for count in set(replicas)
    }
    for i, (size, count) in enumerate(splits):
        index, place = problem.size_index[size // count], problem.micro_batch_sizes.index(size)
        num = problem.training.batch_size // size
        closing, moving = closing_by_count[count]
        whole = num * (costs.whole[index] + tasks) + closing
        through = num * (costs.through[index] + tasks) - costs.task_s + tails[place]
        steps[i] = heads[place] + numpy.maximum(whole, through)
        if count > 1:
            steps[i, ~free] = math.inf
        spent[i] = costs.work[index] + count * costs.least_share * moving
    single_s = float(steps[replicas == 1].min(axis=0, initial=math.inf).max())
    spent_by_count = {count: spent[replicas == count].min(axis=0) for count in closing_by_count}
    num_devices = len(problem.cluster.devices)
    for count in closing_by_count:
        rows = replicas == count
        limit = bound_group(costs, spent[rows], count, spent_by_count, num_devices=num_devices)
        steps[rows] = numpy.maximum(steps[rows], limit)
    least = steps.min(axis=0)
    v = int(least.argmax())
    node = Bound(
        step_s=float(least[v]),
        proof=f"node {problem.nodes[v].name!r} on the devices that may share it",
    )
    found = [node, _bound_capacity(problem, steps, spent, node.step_s)]
    if 1 in spent_by_count:
        best = max(bound.step_s for bound in found)
        found.append(
            bound_starts(problem, costs, spent_by_count, heads, single_s=single_s, least_s=best)
        )
    return found


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
        proof=f"all work with the replicas that so short a step needs, over"
        f" {len(problem.cluster.devices)} devices",
    )


def _measure_closing(problem: Problem, count: int, local_steps: int) -> tuple[Floats, Floats]:
    """By node, c_v and c'_v for so many replicas."""
    cluster = problem.cluster
    trained = numpy.where(problem.needs_backward, problem.trained_elements, 0)
    amounts, place = numpy.unique(trained, return_inverse=True)
    used = [cluster.types[kind] for kind in set(problem.type_index_by_device)]
    laws = [link.law for link in cluster.links if link.law is not None]
    least_half = 0.5 / max([1.0, *(law.once for law in laws)])
    replicas = count if problem.miniature is None else count * problem.miniature.times
    closing, moving = [], []
    for elements in amounts.tolist():
        num_bytes = elements * problem.element_bytes
        update_s = min(time_update(problem, kind, elements) for kind in used)
        launch_s = max(kind.launch_s for kind in used)
        reduce_s = least_allreduce_time(cluster, count, num_bytes)
        if problem.zero_levels[-1]:  # Gradients may be scattered, and every replica update a share.
            update_s = min(time_update(problem, kind, elements / replicas) for kind in used)
            reduce_s *= least_half
        closing.append(reduce_s / local_steps + update_s)
        moving.append(max(0.0, update_s - launch_s))
    return numpy.array(closing)[place], numpy.array(moving)[place]


def _list_splits(problem: Problem) -> list[tuple[int, int]]:
    """Legal pairs of micro-batch size and replicas."""
    return [
        (size, size // samples)
        for size in problem.micro_batch_sizes
        for samples in problem.sample_sizes
        if size % samples == 0 and size // samples <= len(problem.cluster.devices)
    ]
