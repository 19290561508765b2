"""measure_delays: block updates between a read and its write, in the steady state of a schedule.

As in Randomized PipeDream (arXiv 2606.03498): time is counted in block updates, one for every
update of a stage. Micro-batch i reads the weights of every stage r at F(r, i), or earlier where
the policy reads a version that F finds outdated (2bw, vertical-sync): then when that version was
replaced. Stage s writes with the update that its B(s, i) is part of. The delay of the pair (r, s)
is the number of updates, of all stages, between the two. Every task takes one tick and the events
of one tick are taken in the order of the stages; another order moves the delays.

With an update after every backward (stash) the largest delay of a chain of S stages is
floor(S^2 - S/2), the mean over all pairs (S^2 - 1)/2. In a graph of n stages and depth D with one
source it is n (D - 1) + e, where e stages run their backwards in the ticks of the source's
forwards. Ticks alternate along every path, so that e is about n/2 and the delay about n D - n/2;
it is off by up to n/2 when most stages share a phase, as the leaves of a star do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.staleness.versions import read_forward
from graphplan.staleness.walk import list_machines, list_needs, mark_done, walk_schedule


class StageDelay(Noun, frozen=True, kw_only=True):
    """Delays of the writes of one stage."""

    stage: int
    staleness: int
    """How many own updates behind the weights are that F reads, when its gradient is applied."""
    largest: int
    mean: float
    """Over the reads of all stages."""


class Delays(Noun, frozen=True, kw_only=True):
    """Delays of a schedule in block updates; stages without a backward have none."""

    largest: int
    mean: float
    """Over all pairs of reading and writing stages."""
    stages: tuple[StageDelay, ...]


def count_needed(policy: WeightPolicy) -> int:
    """Micro-batches of a schedule whose middle third is steady."""
    return 6 * (max(policy.warmups, default=0) + 4) * policy.accumulate


def measure_delays(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> Delays:
    """The delays of the middle third of the micro-batches of an asynchronous schedule."""
    trained = [s for s, stage in enumerate(priced.stages) if stage.needs_backward]
    if not trained:
        raise InvalidOption(
            "No stage of these has weights to train, so that there are no delays.",
            remedy="Plan the model in training mode, with parameters that require gradients.",
        )
    events = _number_events(priced, schedule, policy)
    count = priced.num_micro_batches(0)
    middle = range(count // 3, max(count // 3 + 1, 2 * count // 3))
    rows = []
    for s in trained:
        delays = [events.writes[s, i] - events.reads[r, i] for i in middle for r in trained]
        staleness = max(i // policy.accumulate - events.versions[s, i] for i in middle)
        mean = sum(delays) / len(delays)
        rows.append(StageDelay(stage=s, staleness=staleness, largest=max(delays), mean=mean))
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


@dataclass
class _Events:
    """By (stage, micro-batch): the block update at its read and at its write, the version read."""

    reads: dict[tuple[int, int], int] = field(default_factory=dict)
    writes: dict[tuple[int, int], int] = field(default_factory=dict)
    versions: dict[tuple[int, int], int] = field(default_factory=dict)


def _number_events(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> _Events:
    """Walk through the ticks, stage by stage, and count updates."""
    events = _Events()
    updates = 0
    replaced: dict[int, list[int]] = {stage: [] for stage in range(len(priced.stages))}
    waiting: dict[int, list[int]] = {stage: [] for stage in range(len(priced.stages))}
    ticks = time_schedule(priced, schedule)
    for task in sorted(ticks, key=lambda task: (ticks[task], task.stage)):
        stage, m = task.stage, task.micro_batch
        if not priced.stages[stage].needs_backward:
            continue
        if task.kind == "F":
            current = len(replaced[stage])
            version = read_forward(policy, stage, m, stamp=current).version
            events.versions[stage, m] = version
            events.reads[stage, m] = updates if version == current else replaced[stage][version]
        elif task.kind in ("B", "W"):
            waiting[stage].append(m)
            if len(waiting[stage]) == policy.accumulate:
                events.writes |= {(stage, each): updates for each in waiting[stage]}
                waiting[stage].clear()
                replaced[stage].append(updates)
                updates += 1
    return events
