"""The sweep over micro-batch sizes and grids that planners of pipelines with bottlenecks share."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from graphplan.cost.cuts import Cuts, OrderCuts
from graphplan.cost.model import CostModel
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.pipelines.grid import Grid, list_grids
from graphplan.partition.pipelines.pipeline import (
    Cut,
    StageList,
    StageTables,
    cut_pipeline,
)
from graphplan.partition.proposal import Proposals, Wish, offer_parts

MAX_SETTINGS = 40
"""Settings that are tried by the coarse tables."""
NUM_REFINED = 3
"""Settings that are searched again with the fine tables."""
FAR = 2.0
"""How many times the best step the neighbours of a setting may take for it to be tried."""
ROUGH, CLOSE = 0.05, 0.004
"""Relative width at which the bisection of the bottleneck stops: to compare settings, and for the
best of them."""
HOPELESS = 0.1
"""How much longer than the best step the slowest stage's work may be for a cut to be judged."""
RELAXED = (1.1, 1.25, 1.5, 2.0)
"""Larger targets that are offered too: shallower pipelines fill and drain faster."""

Position = tuple[int, int]
"""Positions of a setting among the grids and the micro-batch sizes."""


class Setting(NamedTuple):
    """How devices are handed out, the micro-batch size, and a guess of the step's seconds."""

    grid: Grid
    size: int
    guess_s: float


def sweep_settings(cost: CostModel, wish: Wish, coarse: Cuts, fine: Sequence[Cuts]) -> Proposals:
    """Good pipelines of every setting by coarse tables, the best of a few by all tables."""
    settings = list_settings(cost)
    sweep, stages = _Sweep(cost, wish), StageList(coarse)
    found: dict[Position, float] = {}
    while (position := pick_next(settings, found)) is not None:
        if len(found) >= wish.scale(MAX_SETTINGS):
            break
        found[position] = yield from sweep.offer_cuts(stages, settings[position], ROUGH)
    ranked = sorted(found, key=lambda position: found[position])
    for tables in (stages, *map(StageList, fine)):
        for position in ranked[:NUM_REFINED]:
            yield from sweep.offer_cuts(tables, settings[position], CLOSE)
    return ""


def list_settings(cost: CostModel) -> dict[Position, Setting]:
    """Micro-batch sizes and grids that have any stages."""
    problem = cost.problem
    whole = StageList(OrderCuts(cost, [tuple(range(problem.num_nodes))]))
    found: dict[Position, Setting] = {}
    for g, grid in enumerate(list_grids(problem.cluster)):
        for s, size in enumerate(problem.micro_batch_sizes):
            tables = StageTables(whole, grid, size)
            if tables.widths:
                # A pipeline half as deep as it could be fills while so many micro-batches pass.
                guess_s = (tables.count + grid.num_units / 2) * tables.least_bottleneck()
                found[g, s] = Setting(grid, size, guess_s)
    return found


def pick_next(
    settings: Mapping[Position, Setting], found: Mapping[Position, float]
) -> Position | None:
    """The setting to try next: the best guess of every grid, then always a neighbour of the best
    that was found, since step times rise away from the best size; None when all are tried or far.

    Guesses know nothing of transfers: where these are long, they may be far off.
    """
    untried = [position for position in settings if position not in found]

    def guess(position: Position) -> tuple[float, Position]:
        return settings[position].guess_s, position

    tried_grids = {g for g, _ in found}
    first = [position for position in untried if position[0] not in tried_grids]
    if first:
        return min(first, key=guess)
    far_s = FAR * min(found.values(), default=math.inf)
    for g, s in sorted(found, key=lambda position: (found[position], position)):
        if found[g, s] > far_s:
            return None
        near = [
            position for position in untried if abs(position[0] - g) + abs(position[1] - s) == 1
        ]
        if near:
            return min(near, key=guess)
    return min(untried, key=guess, default=None)


class _Sweep:
    """What the settings of one sweep have in common: the best judgement so far."""

    def __init__(self, cost: CostModel, wish: Wish) -> None:
        self.cost, self.wish, self.best_s = cost, wish, math.inf

    def offer_cuts(
        self, stages: StageList, setting: Setting, tolerance: float
    ) -> Generator[Draft | None, float, float]:
        """Offer pipelines on the way to the smallest bottleneck; the least step time, of those that
        are hopeless the time of their slowest stage."""
        found_s = math.inf
        tables = StageTables(stages, setting.grid, setting.size)
        for cut in _list_cuts(tables, tolerance):
            least_s = tables.count * cut.bottleneck_s
            if self.wish.is_step and least_s > self.best_s * (1 + HOPELESS):
                found_s = min(found_s, least_s)
                yield None
                continue
            parts = [
                Part(
                    nodes=stages.cuts.nodes_of(first, last),
                    devices=devices,
                    micro_batch_size=setting.size,
                )
                for first, last, devices in cut.stages
            ]
            found_s = min(found_s, (yield from offer_parts(self.cost, parts)))
            self.best_s = min(self.best_s, found_s)
        return found_s


def _list_cuts(tables: StageTables, tolerance: float) -> Iterator[Cut]:
    """Pipelines with smaller and smaller bottlenecks, then a few shallower ones."""
    cut = cut_pipeline(tables, math.inf)
    low_s = tables.least_bottleneck()
    while cut is not None:
        yield cut
        high_s, cut = cut.bottleneck_s, None
        while cut is None and high_s - low_s > tolerance * high_s:
            middle_s = (low_s + high_s) / 2
            cut = cut_pipeline(tables, middle_s)
            if cut is None:
                low_s = middle_s
        if cut is None:
            for factor in RELAXED:
                relaxed = cut_pipeline(tables, factor * high_s)
                if relaxed is not None:
                    yield relaxed
