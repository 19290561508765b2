"""Data parallel: one stage with everything in it, replicated; the baseline of all baselines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.partition.answer import Answer, Request
from graphplan.partition.assemble import Part
from graphplan.partition.choose import Chooser


def solve(problem: Problem, request: Request) -> Answer:
    """The best number of replicas and micro-batch size; all devices first."""
    chooser = Chooser(problem, request, solver="data-parallel")
    nodes = tuple(range(problem.num_nodes))
    with chooser.keep_best():
        for devices in list_device_groups(problem):
            for size in problem.micro_batch_sizes:
                samples, rest = divmod(size, len(devices))
                if not rest and _fits_somewhere(chooser.model, samples):
                    chooser.offer([Part(nodes=nodes, devices=devices, micro_batch_size=size)])
            if chooser.is_late():
                break
    return chooser.make_answer()


@lru_cache(maxsize=256)
def _fits_somewhere(model: CostModel, samples: int) -> bool:
    """Whether the largest device holds everything, with one micro-batch in flight."""
    problem = model.problem
    if samples not in problem.size_index:
        return False
    most = max(device.memory_bytes for device in problem.cluster.devices)
    nodes = range(problem.num_nodes)
    return any(
        model.stage_memory(nodes, samples, recompute=recompute).total(1) <= most
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
