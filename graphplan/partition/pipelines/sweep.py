"""The sweep over micro-batch sizes and grids that planners of pipelines with bottlenecks share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part
from graphplan.partition.choose import Chooser
from graphplan.partition.pipelines.grid import Grid, list_grids
from graphplan.partition.pipelines.intervals import Intervals
from graphplan.partition.pipelines.pipeline import (
    Cut,
    CutTables,
    StageList,
    StageTables,
    cut_pipeline,
)

NUM_REFINED = 3
"""Settings that are searched again with the fine tables."""
TOLERANCE = 0.004
"""Relative width at which the bisection of the bottleneck stops."""
RELAXED = (1.1, 1.25, 1.5, 2.0)
"""Larger targets that are offered too: shallower pipelines fill and drain faster."""

Setting = tuple[Grid, int]
"""How devices are handed out, and the micro-batch size."""


def sweep_settings(chooser: Chooser, coarse: CutTables, fine: Sequence[CutTables]) -> None:
    """Offer the best pipelines of every setting by coarse tables, of the best few by fine ones."""
    settings = list_settings(chooser.problem)
    stages = StageList(coarse)
    ranked = sorted(
        ((_offer_cuts(chooser, stages, setting), i) for i, setting in enumerate(settings))
    )
    for tables in fine:
        stages = StageList(tables)
        for _, i in ranked[:NUM_REFINED]:
            _offer_cuts(chooser, stages, settings[i])


def list_settings(problem: Problem) -> list[Setting]:
    """Micro-batch sizes and grids, the most promising first: little work, and a quick start."""
    whole = StageList(Intervals(problem, [tuple(range(problem.num_nodes))]))
    found = []
    for g, grid in enumerate(list_grids(problem.cluster)):
        for size in problem.micro_batch_sizes:
            tables = StageTables(whole, grid, size)
            if tables.widths:
                # A pipeline half as deep as it could be fills while so many micro-batches pass.
                step_s = (tables.count + grid.num_units / 2) * tables.least_bottleneck()
                found.append((step_s, g, size, grid))
    return [(grid, size) for _, _, size, grid in sorted(found, key=lambda each: each[:3])]


def _offer_cuts(chooser: Chooser, stages: StageList, setting: Setting) -> float:
    """Offer all pipelines on the way to the smallest bottleneck; the best evaluated step time."""
    grid, size = setting
    best_s = math.inf
    if chooser.is_late():
        return best_s
    for cut in _list_cuts(StageTables(stages, grid, size)):
        parts = [
            Part(nodes=stages.cuts.nodes_of(first, last), devices=devices, micro_batch_size=size)
            for first, last, devices in cut.stages
        ]
        best_s = min(best_s, chooser.offer(parts))
        if chooser.is_late():
            break
    return best_s


def _list_cuts(tables: StageTables) -> Iterator[Cut]:
    """Pipelines with smaller and smaller bottlenecks, then a few shallower ones."""
    cut = cut_pipeline(tables, math.inf)
    low_s = tables.least_bottleneck()
    while cut is not None:
        yield cut
        high_s, cut = cut.bottleneck_s, None
        while cut is None and high_s - low_s > TOLERANCE * high_s:
            middle_s = (low_s + high_s) / 2
            cut = cut_pipeline(tables, middle_s)
            if cut is None:
                low_s = middle_s
        if cut is None:
            for factor in RELAXED:
                relaxed = cut_pipeline(tables, factor * high_s)
                if relaxed is not None:
                    yield relaxed
