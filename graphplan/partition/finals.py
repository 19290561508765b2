"""Finals: which drafts of a search are worth a rehearsal, and how many it can afford."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from graphplan.nouns.stages import StageGraph
from graphplan.partition.appraise import Appraiser
from graphplan.partition.scene import Draft

MAX_DRAFTS = 400
"""Drafts that are appraised once more."""
REHEARSING_S, TASK_S = 1.2, 1.5e-4
"""About what rehearsals may take, and what one task adds to one, on a computer of 2024."""
NUM_FURTHER = 24
"""Micro-batches of a rehearsal beyond the depth."""
MAX_REHEARSALS = 60


def count_rehearsals(stages: StageGraph, batch_size: int) -> int:
    """Rehearsals of stages like these that a search can afford; 0 where one takes too long."""
    depth = max(stages.heights) + 1
    longest = max(stage.micro_batch_size for stage in stages.stages) * (depth + NUM_FURTHER)
    num_tasks = sum(
        3 * min(batch_size, longest) // stage.micro_batch_size for stage in stages.stages
    )
    return min(MAX_REHEARSALS, int(REHEARSING_S / (TASK_S * num_tasks)))


def choose_finalists(drafts: Iterable[Draft], appraiser: Appraiser, count: int) -> list[Draft]:
    """The best drafts by a relaxed appraisal: half of them whatever they are, then the best one of
    every micro-batch size and number of device groups."""
    step_by_draft: dict[Draft, float] = {}
    for draft in islice(drafts, MAX_DRAFTS):
        appraisal = appraiser.appraise(draft)
        if appraisal is not None and not appraisal.excess_bytes:
            step_by_draft[draft] = appraisal.step_s
    ranked = sorted(step_by_draft, key=lambda draft: step_by_draft[draft])
    first_by_kind: dict[tuple[int, int], Draft] = {}
    for draft in ranked:
        groups = {part.devices for part in draft}
        first_by_kind.setdefault((draft[0].micro_batch_size, len(groups)), draft)
    chosen = dict.fromkeys([*ranked[: (count + 1) // 2], *first_by_kind.values(), *ranked])
    return list(chosen)[:count]
