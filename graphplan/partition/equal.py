"""Equal split: stages of equal work, or of equally many nodes, along the topological order.

What people do by hand: every width x depth that uses all devices, every micro-batch size. Depth 1
is left to data-parallel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.assemble import Part
from graphplan.partition.proposal import Proposals, Wish, offer_parts

MAX_SHAPES = 60
"""Shapes that are tried, those that promise most first."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """Equal splits; shapes that promise most are tried first."""
    problem = cost.problem
    ways = (_sum_work(problem), numpy.ones(problem.num_nodes))
    shapes = sorted(_list_shapes(problem))[: wish.scale(MAX_SHAPES)]
    for (_, size, depth, width), weights in itertools.product(shapes, ways):
        yield from offer_parts(cost, _cut_evenly(weights, size, depth, width))
    return ""


def _list_shapes(problem: Problem) -> Iterator[tuple[float, int, int, int]]:
    """(estimated seconds, micro-batch size, depth, width) of every even grid of devices."""
    num_devices = len(problem.cluster.devices)
    deepest = min(num_devices, problem.num_nodes)
    for depth in range(min(2, deepest), deepest + 1):
        width = num_devices // depth
        if depth * width != num_devices and depth != deepest:
            continue
        for size in problem.micro_batch_sizes:
            index = problem.size_index.get(size // width) if size % width == 0 else None
            if index is not None:
                count = problem.training.batch_size // size
                slowest = (problem.forward_s + problem.input_grad_s + problem.weight_grad_s).max(0)
                yield (count + depth - 1) * float(slowest[index].sum()) / depth, size, depth, width


def _sum_work(problem: Problem) -> Floats:
    """Seconds of every node for the largest number of samples, on the first device type."""
    work: Floats = (problem.forward_s + problem.input_grad_s + problem.weight_grad_s)[0, -1]
    return work


def _cut_evenly(weights: Floats, size: int, depth: int, width: int) -> list[Part]:
    return [
        Part(
            nodes=tuple(range(first, last)),
            devices=tuple(range(s * width, (s + 1) * width)),
            micro_batch_size=size,
        )
        for s, (first, last) in enumerate(cut_evenly(weights, depth))
    ]


def cut_evenly(weights: Sequence[float] | Floats, num_parts: int) -> list[tuple[int, int]]:
    """Ranges of positions with about equal weight, none of them empty."""
    ends = numpy.cumsum(weights)
    num, total = len(ends), float(ends[-1])
    cuts = [0]
    for part in range(1, num_parts):
        wanted = total * part / num_parts
        cut = int(numpy.searchsorted(ends, wanted))
        # Include the position that crosses the mark when its middle lies before it.
        if cut < num and ends[cut] - wanted <= wanted - (ends[cut - 1] if cut else 0.0):
            cut += 1
        cuts.append(min(max(cut, cuts[-1] + 1), num - (num_parts - part)))
    return list(zip(cuts, [*cuts[1:], num], strict=True))
