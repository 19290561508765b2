"""Linear orders of a graph, and their cutting into blocks where few bytes cross.

A solver for chains sees only the cuts of one order, so that the order decides what it can find.
Tried are: greedy by the bytes that are alive across the cut; depth first, which finishes a branch
before it starts the next one; the order as given; depth first with the longest branch first.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import numpy

from graphplan.nouns.dag import Neighbours
from graphplan.nouns.problem import Floats, Problem

Tensors = Sequence[tuple[Sequence[int], float]]
"""The nodes at the ends of every tensor, and its weight."""


def list_orders(
    predecessors: Neighbours,
    successors: Neighbours,
    tensors: Tensors,
    *,
    num_random: int = 0,
    seed: int = 0,
) -> Iterator[tuple[int, ...]]:
    """Different topological orders, the most promising first; then random depth-first ones."""
    num = len(predecessors)
    heights = _measure_heights(successors)
    rng = random.Random(seed)
    makers: list[Callable[[], tuple[int, ...]]] = [
        lambda: order_by_cut(predecessors, successors, tensors),
        lambda: order_depth_first(predecessors, successors, [float(-v) for v in range(num)]),
        lambda: tuple(range(num)),
        lambda: order_depth_first(predecessors, successors, heights),
        lambda: order_depth_first(predecessors, successors, [-h for h in heights]),
    ]
    makers += [
        lambda: order_depth_first(predecessors, successors, [rng.random() for _ in range(num)])
    ] * num_random
    seen = set()
    for make in makers:
        order = make()
        if order not in seen:
            seen.add(order)
            yield order


def list_problem_orders(
    problem: Problem, *, num_random: int = 0, seed: int = 0
) -> Iterator[tuple[int, ...]]:
    """Orders of a problem's nodes; flows weigh as many bytes as they carry."""
    tensors = weigh_flows(problem)
    return list_orders(
        problem.predecessors, problem.successors, tensors, num_random=num_random, seed=seed
    )


def weigh_flows(problem: Problem) -> Tensors:
    """The flows between nodes with their bytes at the largest number of samples."""
    return [
        ((flow.owner, *flow.readers), float(flow.bytes_by_size[-1]))
        for flow in problem.flows
        if flow.owner is not None
    ]


def order_depth_first(
    predecessors: Neighbours, successors: Neighbours, priority: Sequence[float]
) -> tuple[int, ...]:
    """Topological order that continues with what became ready last, the highest priority first."""
    missing = [len(before) for before in predecessors]
    ready = sorted((v for v, m in enumerate(missing) if not m), key=lambda v: (priority[v], -v))
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        fresh = []
        for after in successors[node]:
            missing[after] -= 1
            if not missing[after]:
                fresh.append(after)
        ready += sorted(fresh, key=lambda v: (priority[v], -v))
    return tuple(order)


def order_by_cut(
    predecessors: Neighbours, successors: Neighbours, tensors: Tensors
) -> tuple[int, ...]:
    """Topological order that keeps what is alive across the cut small, step by step.

    Taking a node opens the tensors of which it is the first end and closes those of which it is the
    last one. Of equal nodes the one that became ready last is taken.
    """
    num = len(predecessors)
    tensors_by_node: list[list[int]] = [[] for _ in range(num)]
    for t, (ends, _) in enumerate(tensors):
        for node in set(ends):
            tensors_by_node[node].append(t)
    untaken = [len(set(ends)) for ends, _ in tensors]
    size = list(untaken)

    def growth(node: int) -> float:
        opened = sum(tensors[t][1] for t in tensors_by_node[node] if untaken[t] == size[t] > 1)
        closed = sum(tensors[t][1] for t in tensors_by_node[node] if untaken[t] == 1 < size[t])
        return opened - closed

    missing = [len(before) for before in predecessors]
    stamp = [0] * num
    queue = [(growth(v), 0, v) for v in range(num) if not missing[v]]
    heapq.heapify(queue)
    order: list[int] = []
    taken = [False] * num
    while queue:
        node = heapq.heappop(queue)[2]
        if taken[node]:
            continue
        taken[node] = True
        order.append(node)
        for after in successors[node]:
            missing[after] -= 1
            stamp[after] = -len(order)
        changed = set(successors[node])
        for t in tensors_by_node[node]:
            untaken[t] -= 1
            if untaken[t] in (1, size[t] - 1):
                changed.update(tensors[t][0])
        # A node's growth only falls; its older, higher entries are skipped when they come up.
        for other in changed:
            if not missing[other] and not taken[other]:
                heapq.heappush(queue, (growth(other), stamp[other], other))
    return tuple(order)


def make_blocks(
    order: Sequence[int], work: Sequence[float] | Floats, tensors: Tensors, *, max_blocks: int
) -> list[tuple[int, ...]]:
    """The order in at most so many blocks of similar work, cut where the least weight crosses."""
    num = len(order)
    if num <= max_blocks:
        return [(node,) for node in order]
    crossing = _weigh_cuts(order, tensors)
    ends = numpy.cumsum([work[node] for node in order])
    share = ends / ends[-1] if ends[-1] > 0 else numpy.arange(1, num + 1) / num
    bucket = numpy.minimum((share * max_blocks).astype(int), max_blocks - 1)
    cuts = [0]
    for b in range(max_blocks - 1):
        inside = numpy.flatnonzero(bucket == b)
        if len(inside):
            cuts.append(int(inside[crossing[inside + 1].argmin()]) + 1)
    cuts.append(num)
    return [tuple(order[a:b]) for a, b in itertools.pairwise(cuts) if b > a]


def _weigh_cuts(order: Sequence[int], tensors: Tensors) -> Floats:
    """Weight of the tensors that cross before each position, 0 to the length."""
    position = {node: i for i, node in enumerate(order)}
    change = numpy.zeros(len(order) + 2)
    for ends, weight in tensors:
        places = [position[node] for node in ends]
        change[min(places) + 1] += weight
        change[max(places) + 1] -= weight
    crossing: Floats = change.cumsum()[: len(order) + 1]
    return crossing


def _measure_heights(successors: Neighbours) -> list[float]:
    """Longest path to a sink, in edges; nodes are numbered in a topological order."""
    heights = [0.0] * len(successors)
    for node in range(len(successors) - 1, -1, -1):
        heights[node] = max((1 + heights[after] for after in successors[node]), default=0.0)
    return heights
