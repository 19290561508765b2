"""Which weight version F and B of a micro-batch read, under every policy (docs/staleness.md).

A read is a version and a distance: W(version) + distance * (the last displacement of W). The stamp
of a micro-batch is the version that its stage has when it runs F. With i the micro-batch, m the
micro-batches of an update and x = floor((max w - w_s) / 2), the stage's half depth in a chain,

    policy          F reads                              B reads
    flush, local    stamp                                as F
    naive           stamp                                current
    stash           stamp                                as F
    vertical-sync   floor(max(0, i - max w) / m)         as F
    2bw             max(floor(i/m) - 1, 0)               as F
    predict         stamp + (floor(i/m) - stamp)         current
    spectrain1      stamp + (floor(i/m) - stamp + x)     current + x
    spectrain2      stamp + (floor(i/m) - stamp)         as F

Distances come from the stamp, never from the place of a stage. SpecTrain's floor(s/2) is x on
graphs: in a chain max w - w_s = s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.staleness.walk import walk_schedule


class Read(NamedTuple):
    """W(version), extrapolated by `distance` times the last displacement."""

    version: int
    distance: int = 0


class Stamped(NamedTuple):
    """A task with what it reads and how many updates its stage had made."""

    task: Task
    read: Read
    current: int


def read_forward(policy: WeightPolicy, stage: int, micro_batch: int, *, stamp: int) -> Read:
    """What F of a micro-batch reads at a stage that has made `stamp` updates."""
    if policy.is_synchronous:
        return Read(stamp)
    update = micro_batch // policy.accumulate
    if policy.name == "vertical-sync":
        read = Read(max(0, micro_batch - max(policy.warmups)) // policy.accumulate)
    elif policy.name == "2bw":
        read = Read(max(update - 1, 0))
    elif policy.name in ("predict", "spectrain2"):
        read = Read(stamp, update - stamp)
    elif policy.name == "spectrain1":
        read = Read(stamp, update - stamp + half_depth(policy, stage))
    else:
        read = Read(stamp)
    if read.version > stamp:
        raise InvalidOption(
            f"F of micro-batch {micro_batch} at stage {stage} must read version {read.version}"
            f" under {policy.name}, but only {stamp} updates were made.",
            remedy=f"Set accumulate to {max(policy.warmups)} or more.",
        )
    return read


def read_backward(policy: WeightPolicy, stage: int, forward: Read, *, current: int) -> Read:
    """What B reads, given what its F read."""
    if not policy.forgets:
        return forward
    if policy.name == "spectrain1":
        return Read(current, half_depth(policy, stage))
    return Read(current)


def half_depth(policy: WeightPolicy, stage: int) -> int:
    """SpecTrain's floor(s/2), for stages of any graph."""
    return (max(policy.warmups) - policy.warmups[stage]) // 2


def list_reads(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> Iterator[Stamped]:
    """Every forward and backward of one batch with the version that it reads."""
    period = priced.num_micro_batches(0) if policy.is_synchronous else policy.accumulate
    gradients: dict[int, int] = defaultdict(int)
    forward: dict[tuple[int, int], Read] = {}
    for task in walk_schedule(priced, schedule):
        stage, m = task.stage, task.micro_batch
        current = gradients[stage] // period
        if task.kind == "F":
            read = read_forward(policy, stage, m, stamp=current)
            forward[stage, m] = read
            yield Stamped(task, read, current)
        elif task.kind in ("B", "I"):
            read = read_backward(policy, stage, forward[stage, m], current=current)
            yield Stamped(task, read, current)
        gradients[stage] += task.kind in ("B", "W")
