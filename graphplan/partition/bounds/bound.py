"""A lower bound on the step time of any plan of a problem, whatever its stages and schedule.

Notation: a plan runs node v on r_v replicas that see n_v samples of every micro-batch, so that it
has M_v = B / (n_v r_v) micro-batches. On device type k it then takes f, i, w seconds for forward,
input gradient and weight gradient; i = w = 0 where v needs no backward. N_k devices have type k.
(k, n) is left out where v alone, with one micro-batch in flight, exceeds the memory of the device:
a stage with v needs at least the weights, the workspace and the saved tensors of v.

Work. The devices spend r_v M_v (f+i+w) = B (f+i+w) / n_v =: a_v(k, n_v) seconds on v. Let l_k >= 0
    with sum_k N_k l_k = 1. As every device is busy for at most T: T = sum_k N_k l_k T >= sum_v
    l_k(v) a_v(k, n_v) >= sum_v min_{k,n} l_k a_v(k, n). Every trained element is updated somewhere,
    which adds its memory traffic in the same way. l_k in proportion to the speed of type k.

Path. A micro-batch goes forward along any path of the graph, stage by stage, and its gradient comes
    back along the last part of it that carries gradients; in a stage it waits for all nodes of that
    stage, hence for those of the path. With a split backward the weight gradient of the node where
    it arrives still follows. So T >= sum over the path of p_v(n_v), with p = f, f+i or f+i+w.

Both at once. T >= work(n) and T >= path(n) hold for the plan's own n, so that T >= m work + (1-m)
    path >= sum_v min_n (m a_v(n) + (1-m) p_v(n)) for every m in [0, 1]: large n make work cheap and
    paths long, and no plan can have it both ways. The best path for a given m is a longest path.

Single nodes. See nodebound.py: what a node takes with the replicas that it needs, and what all
    devices take if it has them. Nodes that are pinned to one device add up.

Groups and starts. See groupbound.py: stages share all their devices or none, and a device waits for
    the first tensor that it is sent.

No other transfers count. Without a barrier between steps only work and pinned devices bound the
period.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy

from graphplan.nouns.plan import Bound
from graphplan.nouns.problem import Problem
from graphplan.partition.bounds.costs import NodeCosts, collect_costs
from graphplan.partition.bounds.nodebound import bound_nodes
from graphplan.partition.bounds.ways import find_gradients

MIXES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
"""Values of m that are tried; each gives a valid bound."""
ROUNDING = 1 - 1e-12
"""Sums in another order may come out a little larger."""


@lru_cache(maxsize=4)  # every solver of one search asks for the same bound
def bound_step(problem: Problem, *, barrier: bool = True, local_steps: int = 1) -> Bound:
    """The largest of the bounds above; `barrier` says whether every batch runs to its end, and
    gradients are reduced in every `local_steps`-th batch."""
    costs = collect_costs(problem)
    if not numpy.isfinite(costs.least_work).all():
        v = int(costs.least_work.argmax())
        return Bound(step_s=math.inf, proof=f"node {problem.nodes[v].name!r} fits no device")
    bounds = [_bound_work(problem, costs), _bound_pinned(problem, costs)]
    if barrier:
        bounds.append(_bound_jointly(problem, costs))
        bounds += bound_nodes(problem, costs, local_steps=local_steps)
    best = max(bounds, key=lambda bound: bound.step_s)
    return Bound(step_s=best.step_s * ROUNDING, proof=best.proof)


def _bound_work(problem: Problem, costs: NodeCosts) -> Bound:
    step_s = float(costs.least_work.sum()) + costs.update_s
    return Bound(
        step_s=step_s, proof=f"all work spread evenly over {len(problem.cluster.devices)} devices"
    )


def _bound_pinned(problem: Problem, costs: NodeCosts) -> Bound:
    """Whatever is pinned to one device runs there one after the other."""
    busy: dict[int, float] = {}
    for node, device in problem.pins.items():
        sizes = numpy.array(problem.sample_sizes, dtype=float)
        seconds = float((problem.training.batch_size * costs.whole[:, node] / sizes).min())
        busy[device] = busy.get(device, 0.0) + seconds
    device = max(busy, key=lambda d: busy[d], default=-1)
    return Bound(step_s=busy.get(device, 0.0), proof=f"the nodes pinned to device {device}")


def _bound_jointly(problem: Problem, costs: NodeCosts) -> Bound:
    """Work and path at once, for the best of a few mixes."""
    found = [(_mix(problem, costs, share), share) for share in MIXES]
    step_s, share = max(found)
    if share == 0.0:
        return Bound(step_s=step_s, proof="one micro-batch along the longest path and back")
    return Bound(
        step_s=step_s,
        proof=f"work of all devices and the longest path, weighed {share:g} to {1 - share:g}",
    )


def _mix(problem: Problem, costs: NodeCosts, share: float) -> float:
    least = share * costs.least_work if share else numpy.zeros(problem.num_nodes)
    extra = [
        (share * costs.work + (1 - share) * path if share else path).min(axis=0) - least
        for path in (costs.forward, costs.through, costs.whole)
    ]
    base = float(least.sum()) + share * costs.update_s
    return base + longest_path(problem, *(each.tolist() for each in extra))


def longest_path(
    problem: Problem, forward: list[float], through: list[float], whole: list[float]
) -> float:
    """The longest way forward along a path and back along the part of it that has gradients.

    `forward` counts for nodes that the gradient does not reach, `whole` for the one where it
    arrives last, `through` for those between.
    """
    gradients = find_gradients(problem)
    turned = [0.0] * problem.num_nodes
    best = [0.0] * problem.num_nodes
    for v in range(problem.num_nodes - 1, -1, -1):
        onward = max((turned[u] for u in gradients[v]), default=0.0)
        turned[v] = through[v] + onward
        further = max((best[u] for u in problem.successors[v]), default=0.0)
        best[v] = max(whole[v] + onward, forward[v] + further)
    return max(best, default=0.0)
