"""Bounds from groups of devices: two stages have the same devices or no device in common.

Weighed seconds as in costs.py; s_u(r) are the least that all devices spend on node u with r
replicas, its update included (without its launch, which stages share).

Group. Let v have r replicas, hence a group G of r devices. Every other node u is either on G, has r
    replicas and costs s_u(r), or is on the N - r others and costs o_u = min_{q <= N-r} s_u(q). Let
    G have the weight g, r min l <= g <= r max l. A plan of T seconds has time for both:
        g T >= s_v(r) + sum_{on G} s_u(r)    and    (1-g) T >= sum_{not on G} o_u.
    p times the first plus the second, for any p >= 0, and the cheaper side for every u:
        T >= (p s_v(r) + sum_u min(p s_u(r), o_u)) / max_g (p g + 1 - g).
    Few replicas of a heavy node leave it too slow (nodebound.py); many of them leave few devices to
    the others, or updates of the others on as many.

Starts. Either no node has replicas: then devices have different nodes, and a device is idle until
    the first of its nodes may start. That node reads from other devices only, so that every tensor
    it reads was sent: it starts after e_u = max over the nodes w that it reads from of head_w + f_w
    + latency + bytes / bandwidth, for the smallest micro-batch and the best link. With N nodes of
    least e: T >= sum_u s_u(1) + min l * (the sum of these e), and a device without a node is idle
    for T. Or some group has at least two devices: then nodes of one replica have the weight
    g = 1 - 2 min l at the most, and as above, for p >= 1,
        T >= sum_u min(p s_u(1), o_u) / (p g + 1 - g),    o_u = min_{q >= 2} s_u(q).
    The lesser of the two holds for every plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy

from graphplan.nouns.plan import Bound
from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.bounds.costs import NodeCosts

SpentByCount = Mapping[int, Floats]
"""s_u(r): [node] by number of replicas."""
NUM_PRICES = 24
"""Values of p that are tried; each gives a valid bound."""


def bound_group(
    costs: NodeCosts, spent: Floats, count: int, spent_by_count: SpentByCount, *, num_devices: int
) -> Floats:
    """[split, node]: the bound where a node has `count` replicas and costs `spent`."""
    inside = spent_by_count[count]
    left = num_devices - count
    outside = _least([each for q, each in spent_by_count.items() if q <= left], len(inside))
    ends = [min(1.0, count * share) for share in (costs.least_share, costs.most_share)]
    ends = ends if left else [1.0]
    bound = numpy.zeros_like(spent)
    for price in _choose_prices(inside, outside):
        cheaper = numpy.minimum(price * inside, outside)
        room = max(price * g + 1 - g for g in ends)
        numpy.maximum(bound, (price * spent + _sum_others(cheaper)) / room, out=bound)
    return bound


def bound_starts(
    problem: Problem,
    costs: NodeCosts,
    spent_by_count: SpentByCount,
    heads: Floats,
    *,
    single_s: float,
    least_s: float,
) -> Bound:
    """The lesser of both cases; `single_s` bounds plans without replicas and `least_s` all."""
    alone = spent_by_count[1]
    starts = _list_starts(problem, costs, heads)[: len(problem.cluster.devices)]
    idle = starts.sum() + (len(problem.cluster.devices) - len(starts)) * least_s
    step_s = max(single_s, float(alone.sum()) + costs.least_share * float(idle))
    shared = [each for q, each in spent_by_count.items() if q > 1]
    if shared:
        step_s = min(step_s, _bound_shared(costs, alone, _least(shared, problem.num_nodes)))
    return Bound(
        step_s=step_s,
        proof=f"all work on {len(problem.cluster.devices)} devices that first wait for a tensor,"
        " or replicas",
    )


def _bound_shared(costs: NodeCosts, alone: Floats, outside: Floats) -> float:
    """Some group has at least two devices."""
    weight = max(0.0, 1 - 2 * costs.least_share)
    return max(
        float(numpy.minimum(price * alone, outside).sum()) / (price * weight + 1 - weight)
        for price in (1.0, *_choose_prices(alone, outside))
        if price >= 1
    )


def _list_starts(problem: Problem, costs: NodeCosts, heads: Floats) -> Floats:
    """In order, when each node may start on a device that has nothing before it."""
    links = [node.link for node in problem.cluster.nodes if len(node.devices) > 1]
    links += [problem.cluster.link] if len(problem.cluster.nodes) > 1 else []
    latency = min((link.latency_s for link in links), default=math.inf)
    bandwidth = max((link.bandwidth_bytes_per_s for link in links), default=math.inf)
    size = min(problem.micro_batch_sizes)
    ends = heads.min(axis=0) + costs.forward.min(axis=0)
    starts = numpy.zeros(problem.num_nodes)
    for flow in problem.flows:
        if flow.owner is not None:
            arrival = ends[flow.owner] + latency + flow.spec.num_bytes(size) / bandwidth
            readers = list(flow.readers)
            starts[readers] = numpy.maximum(starts[readers], arrival)
    starts.sort()
    return starts


def _least(arrays: Sequence[Floats], num_nodes: int) -> Floats:
    """The least of several arrays; infinity where there is none."""
    least: Floats = numpy.min([numpy.full(num_nodes, math.inf), *arrays], axis=0)
    return least


def _choose_prices(inside: Floats, outside: Floats) -> list[float]:
    """Values of p at which some node changes sides, spread over the nodes."""
    real = numpy.isfinite(inside) & numpy.isfinite(outside) & (inside > 0)
    ratios = numpy.unique(numpy.round(outside[real] / inside[real], 6))
    if not len(ratios):
        return [1.0]
    places = numpy.linspace(0, len(ratios) - 1, min(len(ratios), NUM_PRICES)).astype(int)
    return [float(each) for each in ratios[places] if each > 0]


def _sum_others(amounts: Floats) -> Floats:
    """By node, the sum of the amounts of all others, some of which may be infinite."""
    real = numpy.isfinite(amounts)
    total = float(amounts[real].sum())
    others = numpy.where(real, total - amounts, total)
    return numpy.where(int((~real).sum()) - ~real > 0, math.inf, others)
