"""Finals: which drafts of a search are worth a rehearsal, and how many it can afford."""

from __future__ import annotations

from collections.abc import Mapping

from graphplan.nouns.stages import StageGraph
from graphplan.partition.assemble import Part
from graphplan.partition.scene import Draft

FINAL_SLACK = 0.35
"""How much worse than the best a finalist may look before its rehearsal."""
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


def choose_finalists(step_by_draft: Mapping[frozenset[Part], float], count: int) -> list[Draft]:
    """The best drafts, half of them whatever they are, then the best one of every kind."""
    least_s = min(step_by_draft.values())
    close = [key for key, step_s in step_by_draft.items() if step_s <= least_s * (1 + FINAL_SLACK)]
    close.sort(key=lambda key: step_by_draft[key])
    drafts: list[Draft] = [tuple(sorted(key, key=lambda part: part.nodes)) for key in close]
    first_by_kind: dict[tuple[int, int], Draft] = {}
    for draft in drafts:
        groups = {part.devices for part in draft}
        first_by_kind.setdefault((draft[0].micro_batch_size, len(groups)), draft)
    chosen = dict.fromkeys([*drafts[: count // 2], *first_by_kind.values(), *drafts])
    return list(chosen)[:count]
