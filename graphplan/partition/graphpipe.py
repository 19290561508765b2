"""GraphPipe's planner (Jeon et al., arXiv 2406.17145), as published.

A binary search on the time per sample of the slowest stage; for each target the dynamic program of
minflight.py over the series-parallel decomposition, with memory by in-flight samples. Stages are
replicated, branches stay whole or are cut on their own, one stage a device group; no warm-up, no
latency, no topology, no recomputation. The search runs for every single micro-batch size and once
for all sizes together; the judged step time decides between these.

Where the paper says nothing: modules that are not series-parallel are cut as the chain of their
parts. Trivial nodes are folded into their neighbours first, and trivial joins and forks (such as
the concat of the paper's models) end up in the stage of a neighbour.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from graphplan.cost.model import CostModel
from graphplan.partition.assemble import Draft, Part, place_in_order
from graphplan.partition.dag.decompose import decompose_order, find_primes
from graphplan.partition.dag.fold import fold_problem
from graphplan.partition.proposal import Proposals, Wish, offer_parts
from graphplan.partition.trees.minflight import FlightSearch
from graphplan.partition.trees.riders import join_riders
from graphplan.partition.trees.shape import Shape, build_shape

MAX_ITEMS = 64
"""Items of a chain."""
MAX_SIZES = 8
"""Micro-batch sizes that are tried alone."""
MAX_MIXED_SIZES = 4
"""Micro-batch sizes that are tried together, by stage."""
TOLERANCE = 0.01
"""Relative width at which the binary search stops."""
ROOM_SHARES = (1.0, 0.9, 0.75)
"""Shares of the memory that are tried until what was found fits."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """The stages with the smallest time per sample, for every micro-batch size."""
    problem = cost.problem
    folded = fold_problem(problem)
    tree = decompose_order(folded.order)
    min_share = 0.5 / len(problem.cluster.devices)
    shape = build_shape(cost, folded, tree, max_items=MAX_ITEMS, min_share=min_share)
    for sizes in _list_sizes(cost, count=wish.scale(MAX_SIZES)):
        yield from _offer_best(cost, shape, sizes, folded.riders)
    primes = len(find_primes(tree))
    return f"{primes} modules are not series-parallel and were cut as chains" if primes else ""


def _list_sizes(cost: CostModel, *, count: int) -> Iterator[Sequence[int]]:
    """Single micro-batch sizes, the most promising first, then all that pipelines can use."""
    problem, busy_s = cost.problem, cost.mean_times.busy_s
    num_devices = len(problem.cluster.devices)
    batch = problem.training.batch_size

    def estimate(size: int) -> float:
        replicas = max(r for r in range(1, num_devices + 1) if size % r == 0)
        index = problem.size_index[size // replicas]
        work = float(busy_s[index].sum())
        depth = num_devices / replicas
        return (batch / size + depth - 1) * work / depth

    ranked = sorted(problem.micro_batch_sizes, key=lambda size: (estimate(size), size))
    yield from ([size] for size in ranked[:count])
    if len(ranked) > 1:
        powers = [size for size in ranked if ranked[0] % size == 0 or size % ranked[0] == 0]
        yield sorted(powers[:MAX_MIXED_SIZES])


def _offer_best(
    cost: CostModel, shape: Shape, sizes: Sequence[int], riders: Sequence[tuple[int, ...]]
) -> Generator[Draft | None, float, None]:
    """The stages with the smallest time per sample; less memory is used when they do not fit."""
    least = min(device.memory_bytes for device in cost.problem.cluster.devices)
    for share in ROOM_SHARES:
        search = FlightSearch(cost, shape, micro_batch_sizes=sizes, memory_bytes=share * least)
        found = bisect_target(search)
        if found is None:
            yield None
            return
        parts = join_riders(cost.problem, place_in_order(found), riders)
        if (yield from offer_parts(cost, parts)) < float("inf"):
            return


def bisect_target(search: FlightSearch) -> Sequence[Part] | None:
    """The stages for the smallest target that can be met."""
    best = search.search(float("inf"))
    if best is None:
        return None
    low, high = 0.0, best.slowest_s
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        found = search.search(middle)
        if found is None:
            low = middle
        else:
            best, high = found, min(middle, found.slowest_s)
    return best.parts
