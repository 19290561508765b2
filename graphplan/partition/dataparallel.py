"""Data parallel: one stage with everything in it, replicated; the baseline of all baselines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from graphplan.cost.model import CostModel
from graphplan.cost.sums import ALONE, Sharing
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part
from graphplan.partition.proposal import Proposals, Wish, offer_parts

MAX_GROUPS = 48
"""Numbers of replicas that are tried, the largest first."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """Every number of replicas and micro-batch size; all devices first."""
    problem = cost.problem
    nodes = tuple(range(problem.num_nodes))
    fitting = {samples for samples in problem.sample_sizes if _fits_somewhere(cost, samples)}
    groups = itertools.islice(list_device_groups(problem), wish.scale(MAX_GROUPS))
    for devices, size in itertools.product(groups, problem.micro_batch_sizes):
        samples, rest = divmod(size, len(devices))
        if not rest and samples in fitting:
            part = Part(nodes=nodes, devices=devices, micro_batch_size=size)
            yield from offer_parts(cost, [part])
    return ""


def _fits_somewhere(cost: CostModel, samples: int) -> bool:
    """Whether the largest device holds everything, with one micro-batch in flight."""
    problem = cost.problem
    most = max(device.memory_bytes for device in problem.cluster.devices)
    nodes = range(problem.num_nodes)
    return any(
        cost.stage_memory(nodes, samples, recompute=recompute, sharing=sharing).total(1) <= most
        for sharing in (ALONE, Sharing(problem.zero_levels[-1], problem.num_stood_for))
        for recompute in {False, problem.allow_recompute}
    )


def list_device_groups(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Devices that may share one stage: the first so many of all, and of every type."""
    everyone = tuple(range(len(problem.cluster.devices)))
    pools = [everyone]
    if len(problem.cluster.types) > 1:
        pools += [
            tuple(d for d in everyone if problem.type_index_by_device[d] == kind)
            for kind in range(len(problem.cluster.types))
        ]
    largest = max(problem.micro_batch_sizes)
    seen: set[tuple[int, ...]] = set()
    for pool in pools:
        for count in range(min(len(pool), largest), 0, -1):
            if any(size % count == 0 for size in problem.micro_batch_sizes):
                group = pool[:count]
                if group not in seen:
                    seen.add(group)
                    yield group
