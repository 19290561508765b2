"""GPipe: all forwards of the batch, then all backwards (arXiv 1811.06965).

A device with several stages finishes one stage's forwards before the next stage's, which keeps the
other devices fed (breadth-first, arXiv 2211.05953).
"""

from __future__ import annotations

from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.schedule.shop import check_sizes


def build_gpipe(priced: PricedStages) -> Schedule:
    """Stage by stage down the graph, then stage by stage up; both are topological orders."""
    check_sizes(priced)
    return Schedule(
        name="gpipe",
        tasks_by_device=tuple(order_device(priced, hosted) for hosted in priced.stages_by_device),
    )


def order_device(priced: PricedStages, stages: tuple[int, ...]) -> tuple[Task, ...]:
    """Forwards of the device's stages in order, backwards in reverse."""
    forwards = [Task(s, "F", m) for s in stages for m in range(priced.num_micro_batches(s))]
    backwards = [
        Task(s, "B", m)
        for s in reversed(stages)
        if priced.stages[s].needs_backward
        for m in range(priced.num_micro_batches(s))
    ]
    return (*forwards, *backwards)
