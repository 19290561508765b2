"""Shop: priced stages as a job shop, with tasks as numbers for the search loops.

A *machine* is a group of devices that run the same stages, hence equal lists. Every stage s has
four rows of M_s numbers: F, then G (the backward B, or its input half I: whichever the schedule
uses; both hand out the gradient), then W, then U (reduction and update after that micro-batch).
An arc says that a task waits for another one and then for the message between them.

Contention between different transfers is left to the simulator; the messages of one transfer do
share their channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from graphplan.errors import InvalidOption
from graphplan.nouns.dag import Neighbours, collect_neighbours
from graphplan.nouns.prices import PricedStages, TransferPrice
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Kind, Task

Orders = list[list[int]]
"""Task numbers of every machine, in order."""

F, G, W, U = range(4)
"""Rows of a stage's task numbers."""
ROW_BY_KIND = {"F": F, "B": G, "I": G, "W": W}
KINDS: tuple[tuple[Kind, ...], ...] = (("F", "B"), ("F", "I", "W"))
"""Kinds by row, with a whole and with a split backward."""


Arc = tuple[int, float]
"""A task to wait for, and the seconds that pass after its end; plain, as shops have very many."""


@dataclass(frozen=True, eq=False)
class Shop:
    """The job shop of one batch."""

    priced: PricedStages
    devices_by_machine: tuple[tuple[int, ...], ...]
    stages_by_machine: tuple[tuple[int, ...], ...]
    machine_by_stage: tuple[int, ...]
    room_by_machine: tuple[int, ...]
    """Bytes left for activations and workspace when all stages' fixed bytes are in place."""
    first_by_stage: tuple[int, ...]
    count_by_stage: tuple[int, ...]
    """Micro-batches of every stage."""
    stage_by_task: tuple[int, ...]
    arcs_by_task: tuple[tuple[Arc, ...], ...]
    delay_by_ends: dict[tuple[int, int], float]
    """Seconds from the end of a task of one stage to the start of the task that it feeds."""

    @property
    def num_tasks(self) -> int:
        """Length of a row of values by task number, tasks that are not used included."""
        return len(self.stage_by_task)

    @cached_property
    def feeds_by_task(self) -> tuple[tuple[Arc, ...], ...]:
        """The arcs turned round: the tasks that wait for each task."""
        feeds: list[list[Arc]] = [[] for _ in self.arcs_by_task]
        for number, arcs in enumerate(self.arcs_by_task):
            for needed, delay in arcs:
                feeds[needed].append((number, delay))
        return tuple(map(tuple, feeds))

    @cached_property
    def gradient_readers(self) -> Neighbours:
        """Stages to which each stage sends gradients."""
        pairs = ((dst, src) for src, dst in self.priced.backward_edges)
        return collect_neighbours(len(self.count_by_stage), pairs)

    @cached_property
    def row_by_task(self) -> tuple[int, ...]:
        """F, G, W or U."""
        return tuple(row for count in self.count_by_stage for row in range(4) for _ in range(count))

    @cached_property
    def saved_by_stage(self) -> tuple[int, ...]:
        """Saved bytes of one micro-batch; 0 for a stage that needs no backward."""
        return tuple(p.saved_bytes if p.needs_backward else 0 for p in self.priced.stages)

    def number_of(self, stage: int, row: int, micro_batch: int) -> int:
        """The number of a task."""
        return self.first_by_stage[stage] + row * self.count_by_stage[stage] + micro_batch

    def place_of(self, number: int) -> tuple[int, int, int]:
        """Stage, row and micro-batch of a task number."""
        stage = self.stage_by_task[number]
        row, micro_batch = divmod(number - self.first_by_stage[stage], self.count_by_stage[stage])
        return stage, row, micro_batch

    def closing_s(self, stage: int) -> float:
        """Seconds of one reduction of the gradients and the update."""
        price = self.priced.stages[stage]
        return price.reduce_s + price.update_s if price.needs_backward else 0.0


def make_shop(priced: PricedStages) -> Shop:
    """The job shop of priced stages; refuses neighbours whose micro-batches do not nest."""
    check_sizes(priced)
    groups = sorted({tuple(sorted(stage.devices)) for stage in priced.stages})
    machine_by_stage = tuple(groups.index(tuple(sorted(s.devices))) for s in priced.stages)
    hosted = tuple(
        tuple(s for s, machine in enumerate(machine_by_stage) if machine == m)
        for m in range(len(groups))
    )
    room = tuple(
        min(priced.memory_bytes_by_device[device] for device in devices)
        - sum(priced.stages[s].fixed_bytes for s in stages)
        for devices, stages in zip(groups, hosted, strict=True)
    )
    counts = tuple(priced.num_micro_batches(s) for s in range(len(priced.stages)))
    first = [0]
    for count in counts:
        first.append(first[-1] + 4 * count)
    delays = {
        (src, dst): measure_delay(priced.transfer_by_ends.get((src, dst)))
        for edge in priced.edges
        for src, dst in (edge, edge[::-1])
    }
    return Shop(
        priced=priced,
        devices_by_machine=tuple(groups),
        stages_by_machine=hosted,
        machine_by_stage=machine_by_stage,
        room_by_machine=room,
        first_by_stage=tuple(first[:-1]),
        count_by_stage=counts,
        stage_by_task=tuple(s for s, count in enumerate(counts) for _ in range(4 * count)),
        arcs_by_task=tuple(
            arcs for s in range(len(counts)) for arcs in arcs_of_stage(priced, s, first, delays)
        ),
        delay_by_ends=delays,
    )


def check_sizes(priced: PricedStages) -> None:
    """Refuse edges between stages whose micro-batches do not nest."""
    for src, dst in priced.edges:
        a, b = priced.stages[src].micro_batch_size, priced.stages[dst].micro_batch_size
        if a % b and b % a:
            raise InvalidOption(
                f"Stages {src} and {dst} are neighbours with micro-batches of {a} and {b} samples.",
                remedy="Choose sizes of which one divides the other.",
            )


def measure_delay(transfer: TransferPrice | None) -> float:
    """Seconds until the last message of a transfer has arrived, alone on its channels."""
    busy_by_channel: dict[str, float] = {}
    last = 0.0
    for message in transfer.messages if transfer else ():
        busy = busy_by_channel.get(message.channel, 0.0) + message.seconds
        busy_by_channel[message.channel] = busy
        last = max(last, busy + message.latency_s)
    return last


def arcs_of_stage(
    priced: PricedStages,
    stage: int,
    first_by_stage: list[int],
    delay_by_ends: dict[tuple[int, int], float],
) -> list[tuple[Arc, ...]]:
    """What each task of a stage waits for, row by row."""
    count, first = priced.num_micro_batches(stage), first_by_stage[stage]

    def arcs_from(other: int, row: int) -> list[list[Arc]]:
        start = first_by_stage[other] + row * priced.num_micro_batches(other)
        delay = delay_by_ends[other, stage]
        if priced.num_micro_batches(other) == count:
            return [[(start + m, delay)] for m in range(count)]
        needed = (covering(priced, stage, m, other) for m in range(count))
        return [[(start + m, delay) for m in each] for each in needed]

    inputs = [arcs_from(other, F) for other in priced.predecessors[stage]]
    gradients = [arcs_from(dst, G) for src, dst in priced.backward_edges if src == stage]
    forward = [tuple(arc for each in inputs for arc in each[m]) for m in range(count)]
    backward = [
        ((first + m, 0.0), *(arc for each in gradients for arc in each[m])) for m in range(count)
    ]
    weights = [((first + count + m, 0.0),) for m in range(count)]
    return [*forward, *backward, *weights, *[()] * count]


def covering(priced: PricedStages, stage: int, micro_batch: int, other: int) -> range:
    """Micro-batches of `other` that hold the samples of one micro-batch of `stage`."""
    size, theirs = priced.stages[stage].micro_batch_size, priced.stages[other].micro_batch_size
    return range(micro_batch * size // theirs, -(-(micro_batch + 1) * size // theirs))


def number_tasks(shop: Shop, schedule: Schedule) -> Orders:
    """The orders of a schedule's machines as task numbers."""
    return [
        [
            shop.number_of(task.stage, ROW_BY_KIND[task.kind], task.micro_batch)
            for task in schedule.tasks_by_device[devices[0]]
        ]
        for devices in shop.devices_by_machine
    ]


def name_tasks(shop: Shop, orders: Orders, *, split: tuple[bool, ...], name: str) -> Schedule:
    """The schedule of these orders; `split` says which stages run I and W in place of B."""
    by_device: list[tuple[Task, ...]] = [() for _ in shop.priced.memory_bytes_by_device]
    for devices, order in zip(shop.devices_by_machine, orders, strict=True):
        places = (shop.place_of(number) for number in order)
        tasks = tuple(Task(s, KINDS[split[s]][row], m) for s, row, m in places if row != U)
        for device in devices:
            by_device[device] = tasks
    return Schedule(name=name, tasks_by_device=tuple(by_device))
