"""replay_schedule: train a model on paper exactly as a schedule under a weight policy would.

One process runs the tasks of all devices in an order in which they can run. Every stage keeps the
versions that its micro-batches in flight and to come may read, and no others; optimizer state is
never versioned. What a replay says of numbers holds for any timing; it knows no seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.staleness.line import Line
from graphplan.staleness.models import Model, Value
from graphplan.staleness.optimizers import Optimizer
from graphplan.staleness.versions import Stamped
from graphplan.staleness.walk import walk_schedule

Watch = Callable[[int, int, Value], None]
"""Called with stage, version and weights after every update."""


@dataclass(frozen=True)
class Replay:
    """The end of a replay."""

    weights: tuple[Value, ...]
    """By stage."""
    num_updates: tuple[int, ...]
    peak_versions: tuple[int, ...]
    """Most weight tensors that a stage held at a time, extrapolated ones included."""
    reads: tuple[Stamped, ...]


def replay_schedule(
    priced: PricedStages,
    schedule: Schedule,
    policy: WeightPolicy,
    model: Model,
    optimizer: Optimizer,
    *,
    num_batches: int = 1,
    watch: Watch | None = None,
) -> Replay:
    """Run a schedule; the synchronous policies repeat it for every batch.

    Under `local` the devices of a stage are replicas with weights of their own: replica r of R runs
    its share of micro-batch j, which the model knows as micro-batch j * R + r.
    """
    if num_batches > 1 and not policy.is_synchronous:
        raise InvalidOption(
            f"Policy {policy.name} does not drain between batches: one schedule is its replay.",
            remedy="Make the schedule of a longer batch.",
        )
    count = count_replicas(priced) if policy.name == "local" else 1
    lines = [
        Line(priced, policy, model, optimizer, replica=r, num_replicas=count) for r in range(count)
    ]
    for batch in range(num_batches):
        for task in walk_schedule(priced, schedule):
            for line in lines:
                updated = line.run_task(task, batch=batch)
                if updated and watch and policy.name != "local":
                    watch(task.stage, *line.stores[task.stage].newest)
        if policy.name == "local":
            if (batch + 1) % policy.local_steps == 0:
                average_lines(lines)
            tell_mean(lines, watch)
    stores = lines[0].stores
    return Replay(
        weights=tuple(mean_weights(lines, stage) for stage in range(len(stores))),
        num_updates=tuple(store.version for store in stores),
        peak_versions=tuple(store.peak for store in stores),
        reads=tuple(lines[0].reads),
    )


def count_replicas(priced: PricedStages) -> int:
    """Replicas of the whole pipeline: every stage has as many devices."""
    counts = sorted({len(stage.devices) for stage in priced.stages})
    if len(counts) > 1:
        raise InvalidOption(
            f"LocalSGD replicates the whole model, but the stages have {counts} replicas.",
            remedy="Give every stage the same number of devices.",
        )
    return counts[0]


def mean_weights(lines: Sequence[Line], stage: int) -> Value:
    """The mean of the replicas' weights."""
    total = lines[0].stores[stage].newest[1]
    for line in lines[1:]:
        total = total + line.stores[stage].newest[1]
    return total / len(lines) if len(lines) > 1 else total


def average_lines(lines: Sequence[Line]) -> None:
    """Every replica goes on from the mean weights; optimizer states stay local."""
    for stage in range(len(lines[0].stores)):
        mean = mean_weights(lines, stage)
        for line in lines:
            line.stores[stage].replace_newest(mean)


def tell_mean(lines: Sequence[Line], watch: Watch | None) -> None:
    """Show the mean weights of every stage after a batch of LocalSGD."""
    for stage, store in enumerate(lines[0].stores):
        if watch and store.version:
            watch(stage, store.version, mean_weights(lines, stage))
