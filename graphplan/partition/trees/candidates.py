"""Candidates: drafts that the dynamic program finds over settings, bundles and cycle limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Draft, Part, place_in_order
from graphplan.partition.dag.decompose import decompose_order
from graphplan.partition.dag.fold import Folded, fold_problem
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.pack import pack_groups
from graphplan.partition.drafts.scene import is_legal_draft
from graphplan.partition.pins import obey_pins
from graphplan.partition.trees.bundle import bundle_shape
from graphplan.partition.trees.riders import join_riders
from graphplan.partition.trees.settings import Prospect, list_prospects
from graphplan.partition.trees.shape import Shape, build_shape
from graphplan.partition.trees.treesearch import TreeSearch

LIMITS = (1.1, 1.25, 1.6, 2.4)
"""Limits on the cycle, relative to the shortest that the units suffice for."""
CLOSE = 1.03
"""Ratio of two limits between which no further one is tried."""
LOOSEST_GAIN = 1.13
"""What a draft may gain at most over the limit that it keeps: the busiest stage may be faster."""


class CandidateSearch:
    """Runs the dynamic program where it may find something better than what is known."""

    def __init__(
        self, cost: CostModel, appraiser: Appraiser, *, max_items: int, max_settings: int
    ) -> None:
        self.cost, self.appraiser = cost, appraiser
        self.problem: Problem = cost.problem
        self.max_settings = max_settings
        num_devices = len(self.problem.cluster.devices)
        self.folded: Folded = fold_problem(self.problem, max_share=min(0.005, 0.2 / num_devices))
        self.tree = decompose_order(self.folded.order)
        min_share = 0.5 / min(num_devices, 64)
        self.shape = build_shape(
            cost, self.folded, self.tree, max_items=max_items, min_share=min_share
        )
        self.best_s = float("inf")

    def run(self) -> Iterator[tuple[float, Draft]]:
        """Drafts that fit, by their appraisal, with their appraised step seconds."""
        for prospect in list_prospects(self.cost)[: self.max_settings]:
            for shape in self.shapes:
                if prospect.step_s >= self.best_s:
                    return
                search = TreeSearch(self.cost, shape, prospect.setting)
                yield from self._try_limits(search, prospect)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shape as it is, and with its branches in fewer groups."""
        widest = _find_widest(self.shape)
        counts = [count for count in (1, 2, 4) if count < widest]
        return [self.shape, *(bundle_shape(self.shape, count) for count in counts)]

    def _try_limits(self, search: TreeSearch, prospect: Prospect) -> Iterator[tuple[float, Draft]]:
        """The least limit with a draft, from below: 1.1, 1.25 and so on, then halfway between the
        last without and the first with one; and once the limit above, for shallower pipelines.

        The limits are relative to a cycle without recomputation or uneven cuts: where memory asks
        for these, the least one that can be kept lies anywhere between two of them.
        """
        rest = (prospect.setting.num_micro_batches - 1) * prospect.cycle_s

        def try_limit(limit: float) -> list[Part] | None:
            if rest * limit / LOOSEST_GAIN + prospect.path_s > self.best_s:
                return None
            return search.search(prospect.cycle_s * limit)

        low = 1.0
        for place, limit in enumerate(LIMITS):
            parts = try_limit(limit)
            if parts is None:
                low = limit
                continue
            yield from self._appraise(place_in_order(parts))
            high = limit
            while high > low * CLOSE:
                middle = math.sqrt(low * high)
                parts = try_limit(middle)
                if parts is None:
                    low = middle
                else:
                    high = middle
                    yield from self._appraise(place_in_order(parts))
            above = LIMITS[place + 1] if place + 1 < len(LIMITS) else None
            if above is not None and (parts := try_limit(above)) is not None:
                yield from self._appraise(place_in_order(parts))
            return

    def _appraise(self, parts: Sequence[Part]) -> Iterator[tuple[float, Draft]]:
        for draft in self._make_drafts(parts):
            appraisal = self.appraiser.appraise(draft)
            if appraisal is not None and not appraisal.excess_bytes:
                self.best_s = min(self.best_s, appraisal.step_s)
                yield appraisal.step_s, draft

    def _make_drafts(self, parts: Sequence[Part]) -> Iterator[Draft]:
        for apart in (False, True) if self.folded.riders else (False,):
            joined = join_riders(self.problem, parts, self.folded.riders, apart=apart)
            draft = tuple(obey_pins(self.problem, joined))
            if is_legal_draft(self.problem, draft):
                yield draft
                packed = pack_groups(self.problem, draft)
                if packed is not None:
                    yield packed


def _find_widest(shape: Shape) -> int:
    """The most branches of a parallel module."""
    inner = [_find_widest(each) for each in shape.inner if each is not None]
    own = shape.line.num_items if shape.kind == "parallel" else 1
    return max([own, *inner])
