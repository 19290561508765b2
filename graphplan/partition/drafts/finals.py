"""Finals: which drafts of a search are worth a rehearsal, and how many it can afford."""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphplan.nouns.stages import StageGraph
from graphplan.partition.drafts.scene import Draft

TASK_S = 4e-5
"""About what one task adds to a rehearsal, on a computer of 2024."""
NUM_FURTHER = 24
"""Micro-batches of a rehearsal beyond the depth."""
MAX_PER_S = 40
"""Rehearsals in a second, however few their tasks are."""


def count_rehearsals(stages: StageGraph, batch_size: int, *, seconds: float) -> int:
    """Rehearsals of stages like these that so much time is worth; 0 where one takes longer."""
    depth = max(stages.heights) + 1
    longest = max(stage.micro_batch_size for stage in stages.stages) * (depth + NUM_FURTHER)
    num_tasks = sum(
        3 * min(batch_size, longest) // stage.micro_batch_size for stage in stages.stages
    )
    return int(min(MAX_PER_S * seconds, seconds / (TASK_S * num_tasks)))


def choose_finalists(step_by_draft: Mapping[Draft, float], count: int) -> list[Draft]:
    """The best drafts: half of them whatever they are, then the best one of every micro-batch size
    and number of device groups."""
    fitting = [draft for draft, step_s in step_by_draft.items() if step_s < math.inf]
    ranked = sorted(fitting, key=lambda draft: step_by_draft[draft])
    first_by_kind: dict[tuple[int, int], Draft] = {}
    for draft in ranked:
        groups = {part.devices for part in draft}
        first_by_kind.setdefault((draft[0].micro_batch_size, len(groups)), draft)
    chosen = dict.fromkeys([*ranked[: (count + 1) // 2], *first_by_kind.values(), *ranked])
    return list(chosen)[:count]
