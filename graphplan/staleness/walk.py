"""walk_schedule: the tasks of all devices in one order in which they can run.

The devices of a replicated stage have equal lists and count as one machine. Which weight version a
task reads depends on the order of its own machine alone, so that any such walk tells it.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphplan.errors import InvalidOption, InvalidProgram
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task

Done = set[tuple[int, str, int]]


def walk_schedule(priced: PricedStages, schedule: Schedule) -> Iterator[Task]:
    """Every machine runs on as far as its inputs allow, in turn; a deadlock is an error."""
    refuse_mixed(priced)
    lines = [schedule.tasks_by_device[device] for device in list_machines(priced)]
    places = [0] * len(lines)
    done: Done = set()
    while any(place < len(line) for place, line in zip(places, lines, strict=True)):
        before = len(done)
        for machine, line in enumerate(lines):
            while places[machine] < len(line):
                task = line[places[machine]]
                if not all(each in done for each in list_needs(priced, task)):
                    break
                places[machine] += 1
                done |= mark_done(task)
                yield task
        if len(done) == before:
            stuck = next(
                line[place] for place, line in zip(places, lines, strict=True) if place < len(line)
            )
            raise InvalidProgram(
                f"The schedule {schedule.name} stops at {stuck}, whose inputs never come.",
                remedy="Check the plan with `graphplan check plan.json`.",
            )


def list_machines(priced: PricedStages) -> list[int]:
    """The first device of every group of replicas."""
    return sorted({stage.devices[0] for stage in priced.stages})


def list_needs(priced: PricedStages, task: Task) -> list[tuple[int, str, int]]:
    """What must be done before a task: forwards of what it reads, gradients of its readers."""
    stage, m = task.stage, task.micro_batch
    if task.kind == "F":
        return [(other, "F", m) for other in priced.predecessors[stage]]
    if task.kind == "W":
        return [(stage, "I", m)]
    return [(stage, "F", m), *((other, "I", m) for other in list_gradients(priced, stage))]


def list_gradients(priced: PricedStages, stage: int) -> list[int]:
    """The successors that send a gradient back, in ascending order."""
    backward = set(priced.backward_edges)
    return [other for other in priced.successors[stage] if (stage, other) in backward]


def mark_done(task: Task) -> Done:
    """A whole backward is both of its halves."""
    kinds = ("I", "W") if task.kind == "B" else (task.kind,)
    return {(task.stage, kind, task.micro_batch) for kind in kinds}


def refuse_mixed(priced: PricedStages) -> None:
    """Replays count micro-batches, so that these must be the same at every stage."""
    sizes = sorted({stage.micro_batch_size for stage in priced.stages})
    if len(sizes) > 1:
        raise InvalidOption(
            f"The stages have micro-batches of {', '.join(map(str, sizes))} samples; weight"
            " versions are counted in micro-batches of one size.",
            remedy="Search the plan with one micro-batch size.",
        )
