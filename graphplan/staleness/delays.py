"""measure_delays: block updates between a read and its write, in the steady state of a schedule.

As in Randomized PipeDream (arXiv 2606.03498): time is counted in block updates, one for every
update of a stage. Micro-batch i reads the weights of every stage r at F(r, i); stage s writes its
gradient at B(s, i). The delay of the pair (r, s) is the number of updates, of all stages, between
the two. Every task takes one tick and the events of one tick are taken in the order of the stages:
another order within a tick moves the delays by up to a share of the number of stages.

Of a chain of S stages the largest delay is floor(S^2 - S/2) and the mean over all pairs is
(S^2 - 1)/2; of a graph of n stages and depth D the largest is within 1.5 of n D - n/2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.staleness.walk import list_machines, list_needs, mark_done, walk_schedule


class StageDelay(Noun, frozen=True, kw_only=True):
    """Delays of the writes of one stage."""

    stage: int
    warmup: int
    """Forwards ahead of the backwards: how many own updates old the weights are that F reads."""
    largest: int
    mean: float
    """Over the reads of all stages."""


class Delays(Noun, frozen=True, kw_only=True):
    """Delays of a schedule in block updates; stages without a backward have none."""

    largest: int
    mean: float
    """Over all pairs of reading and writing stages."""
    stages: tuple[StageDelay, ...]


def count_needed(warmups: tuple[int, ...]) -> int:
    """Micro-batches of a schedule whose middle third is steady."""
    return 6 * (max(warmups, default=0) + 4)


def measure_delays(priced: PricedStages, schedule: Schedule) -> Delays:
    """The delays of the middle third of the micro-batches, with an update after every backward."""
    trained = [s for s, stage in enumerate(priced.stages) if stage.needs_backward]
    if not trained:
        raise InvalidOption(
            "No stage of these has weights to train, so that there are no delays.",
            remedy="Plan the model in training mode, with parameters that require gradients.",
        )
    ticks = time_schedule(priced, schedule)
    reads, writes, stamps = _number_events(priced, ticks)
    count = priced.num_micro_batches(0)
    middle = range(count // 3, max(count // 3 + 1, 2 * count // 3))
    rows = []
    for s in trained:
        delays = [writes[s, i] - reads[r, i] for i in middle for r in trained]
        warmup = max(i - stamps[s, i] for i in middle)
        mean = sum(delays) / len(delays)
        rows.append(StageDelay(stage=s, warmup=warmup, largest=max(delays), mean=mean))
    return Delays(
        largest=max(row.largest for row in rows),
        mean=sum(row.mean for row in rows) / len(rows),
        stages=tuple(rows),
    )


def time_schedule(priced: PricedStages, schedule: Schedule) -> dict[Task, int]:
    """The tick at which every task starts when each takes one tick and messages take none."""
    machine_by_stage = [stage.devices[0] for stage in priced.stages]
    free = dict.fromkeys(list_machines(priced), 0)
    end_by_work: dict[tuple[int, str, int], int] = {}
    starts: dict[Task, int] = {}
    for task in walk_schedule(priced, schedule):
        machine = machine_by_stage[task.stage]
        ready = (end_by_work[need] for need in list_needs(priced, task))
        starts[task] = max(free[machine], *ready, 0)
        free[machine] = starts[task] + 1
        for work in mark_done(task):
            end_by_work[work] = free[machine]
    return starts


Events = dict[tuple[int, int], int]


def _number_events(
    priced: PricedStages, ticks: Mapping[Task, int]
) -> tuple[Events, Events, Events]:
    """By (stage, micro-batch): updates made at its read, at its write, own updates at its read."""
    reads: Events = {}
    writes: Events = {}
    stamps: Events = {}
    own: dict[int, int] = defaultdict(int)
    updates = 0
    for task in sorted(ticks, key=lambda task: (ticks[task], task.stage)):
        place = (task.stage, task.micro_batch)
        if not priced.stages[task.stage].needs_backward:
            continue
        if task.kind == "F":
            reads[place], stamps[place] = updates, own[task.stage]
        elif task.kind in ("B", "W"):
            writes[place] = updates
            updates += 1
            own[task.stage] += 1
    return reads, writes, stamps
