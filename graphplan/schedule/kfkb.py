"""kFkB: every stage alternates blocks of k forwards and k backwards.

With w_s + 1 blocks in flight, stage s of 4 (k = 1, w = 3 2 1 0, six micro-batches) runs

    F F F F B F B F B B B B       warm-up: w_s + 1 blocks of forwards
    F F F B F B F B F B B B       steady: a block of backwards, a block of forwards
    F F B F B F B F B F B B       drain: the remaining backwards
    F B F B F B F B F B F B
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.schedule.inflight import count_in_flight, measure_units
from graphplan.schedule.shop import check_sizes


def build_kfkb(priced: PricedStages, *, k: int = 1) -> Schedule:
    """Blocks of equal samples at every stage, those of k of the largest micro-batches."""
    largest = max(stage.micro_batch_size for stage in priced.stages)
    for stage in priced.stages:
        if largest % stage.micro_batch_size:
            raise InvalidOption(
                f"Micro-batches of {stage.micro_batch_size} samples do not divide those of"
                f" {largest}, so that blocks cannot be aligned.",
                remedy="Choose sizes that divide the largest one, or schedule 1f1b, list or auto.",
            )
    blocks = [k * largest // stage.micro_batch_size for stage in priced.stages]
    return order_blocks(priced, num_per_block=blocks, name="kfkb")


def order_blocks(
    priced: PricedStages,
    *,
    num_per_block: Sequence[int],
    name: str,
    extra_blocks: Sequence[int] | None = None,
) -> Schedule:
    """The static order with the in-flight rule's warm-ups, `extra_blocks` more where given."""
    check_sizes(priced)
    refuse_shared(priced, name=name)
    units = measure_units(priced, num_per_block=num_per_block)
    samples = count_in_flight(priced, units=units)
    by_device: list[tuple[Task, ...]] = [() for _ in priced.memory_bytes_by_device]
    for stage, price in enumerate(priced.stages):
        blocks = samples[stage] // units[stage] + (extra_blocks[stage] if extra_blocks else 0)
        tasks = tuple(
            order_stage(priced, stage, num_per_block=num_per_block[stage], num_in_flight=blocks)
        )
        for device in price.devices:
            by_device[device] = tasks
    return Schedule(name=name, tasks_by_device=tuple(by_device))


def order_stage(
    priced: PricedStages, stage: int, *, num_per_block: int, num_in_flight: int
) -> Iterator[Task]:
    """Warm-up, steady and drain of one stage; a stage without backward only runs forwards."""
    count = priced.num_micro_batches(stage)
    forwards = [Task(stage, "F", m) for m in range(count)]
    if not priced.stages[stage].needs_backward:
        yield from forwards
        return
    done = min(count, num_in_flight * num_per_block)
    yield from forwards[:done]
    for first in range(0, count, num_per_block):
        yield from (Task(stage, "B", m) for m in range(first, first + num_per_block))
        yield from forwards[done : done + num_per_block]
        done += num_per_block


def refuse_shared(priced: PricedStages, *, name: str) -> None:
    """Refuse devices with several stages."""
    for device, stages in enumerate(priced.stages_by_device):
        if len(stages) > 1:
            raise InvalidOption(
                f"Schedule {name} wants one stage on a device; device {device} has"
                f" stages {', '.join(map(str, stages))}.",
                remedy="Use schedule interleaved, gpipe, list or auto.",
            )
