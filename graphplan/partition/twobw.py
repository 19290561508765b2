"""PipeDream-2BW's planner (arXiv 2006.09503): equal stages, equally replicated.

All widths w and depths d with w d <= N, all micro-batches b of one pipeline, with recomputation or
without; stages of equal work along the topological order. A configuration takes

    t = max over stages i of max(Tcomp_i + sum_j Tcomm_j->i, Tcomm_i / m)

for the w b samples of one micro-batch: computing and what it receives, or its all-reduce spread
over the m = B / (w b) micro-batches of a batch. The best w b / t wins.

Corrected where the paper is loose: m >= max w_s = d - 1 is enough (the paper asks m >= d), and with
d = 1 there is nothing to double-buffer. Memory has two weight versions and w_s + 1 micro-batches in
flight; its proposals are judged like every other planner's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.assemble import Part
from graphplan.partition.dag.work import measure_times
from graphplan.partition.equal import cut_evenly
from graphplan.partition.proposal import Proposals, Wish, offer_parts

NUM_JUDGED = 8
"""Best configurations by the formula that are proposed."""


def propose(cost: CostModel, wish: Wish) -> Proposals:
    """The configurations that the formula likes most."""
    problem = cost.problem
    work = measure_times(problem).work
    found: list[tuple[float, int, list[Part]]] = []
    for number, grid in enumerate(_list_grids(problem)):
        parts = _cut_grid(grid, work)
        if _fits(cost, parts):
            found.append((_formula_time(cost, parts) / grid.size, number, parts))
        yield None
    for _, _, parts in sorted(found)[: wish.scale(NUM_JUDGED)]:
        yield from offer_parts(cost, parts)
    return ""


@dataclasses.dataclass(frozen=True)
class _Grid:
    """d stages of w replicas; `size` samples of a micro-batch over all w pipelines."""

    depth: int
    width: int
    size: int
    recompute: bool


def _list_grids(problem: Problem) -> Iterator[_Grid]:
    num_devices, batch = len(problem.cluster.devices), problem.training.batch_size
    for depth in range(1, min(num_devices, problem.num_nodes) + 1):
        width = num_devices // depth
        for size in problem.micro_batch_sizes:
            legal = size % width == 0 and size // width in problem.size_index
            if legal and batch // size >= depth - 1:
                yield _Grid(depth, width, size, recompute=False)
                if problem.allow_recompute:
                    yield _Grid(depth, width, size, recompute=True)


def _cut_grid(grid: _Grid, work: Floats) -> list[Part]:
    return [
        Part(
            nodes=tuple(range(first, last)),
            devices=tuple(range(s * grid.width, (s + 1) * grid.width)),
            micro_batch_size=grid.size,
            recompute=grid.recompute,
        )
        for s, (first, last) in enumerate(cut_evenly(work, grid.depth))
    ]


def _fits(model: CostModel, parts: list[Part]) -> bool:
    """Two weight versions (one without a pipeline) and w_s + 1 micro-batches in flight."""
    devices = model.problem.cluster.devices
    versions = 2 if len(parts) > 1 else 1
    for s, part in enumerate(parts):
        memory = model.stage_memory(
            part.nodes,
            part.micro_batch_size // len(part.devices),
            recompute=part.recompute,
            num_versions=versions,
        )
        room = min(devices[device].memory_bytes for device in part.devices)
        if memory.total(len(parts) - s) > room:
            return False
    return True


def _formula_time(model: CostModel, parts: list[Part]) -> float:
    """t of the paper."""
    problem = model.problem
    num_micro_batches = problem.training.batch_size // parts[0].micro_batch_size
    slowest = 0.0
    for s, part in enumerate(parts):
        forward, inputs, weights = model.stage_times(
            part.nodes, part.devices, part.micro_batch_size
        )
        compute = forward + inputs + weights + (forward if part.recompute else 0.0)
        received = _receive_time(model, parts, s)
        elements = model.trained_elements(part.nodes)
        reduce = allreduce_time(problem.cluster, part.devices, elements * problem.element_bytes)
        slowest = max(slowest, compute + received, reduce / num_micro_batches)
    return slowest


def _receive_time(model: CostModel, parts: list[Part], index: int) -> float:
    """Seconds of the activations and gradients that one replica of a stage receives."""
    problem, part = model.problem, parts[index]
    size = problem.size_index[part.micro_batch_size // len(part.devices)]
    inside = set(part.nodes)
    entering = sum(
        flow.bytes_by_size[size]
        for flow in problem.flows
        if flow.owner is not None and flow.owner not in inside
        if not inside.isdisjoint(flow.readers)
    )
    leaving = sum(
        flow.bytes_by_size[size]
        for flow in problem.flows
        if flow.needs_grad and flow.owner in inside and not inside.issuperset(flow.readers)
    )
    seconds = 0.0
    for other, num_bytes in ((index - 1, entering), (index + 1, leaving)):
        if 0 <= other < len(parts) and num_bytes:
            message = model.message(parts[other].devices[0], part.devices[0], num_bytes)
            seconds += message.seconds + message.latency_s
    return seconds
