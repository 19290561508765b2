"""Shop: priced stages as a job shop, with tasks as numbers for the search loops.

A *machine* is a group of devices that run the same stages, hence equal lists. Every stage s has
four rows of M_s numbers: F, then G (the backward B, or its input half I: whichever the schedule
uses; both hand out the gradient), then W, then U (reduction and update after that micro-batch).

    stage 0, M = 3      F 0 1 2     G 3 4 5     W 6 7 8     U 9 10 11
    stage 1, M = 3      F 12 13 14  ...

A feed says that a task waits for another one and then for the messages between them: alone on their
channels, those of one transfer in turn. What waits behind other transfers is seen when a program is
played. Of several micro-batches that read one message the first is fed; the others come later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from graphplan.errors import InvalidOption
from graphplan.nouns.dag import Neighbours, collect_neighbours
from graphplan.nouns.prices import PricedStages, TransferPrice
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Kind, Task
from graphplan.play.cast import Cast, cast_devices
from graphplan.play.script import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    KINDS,
    UPDATE,
    WEIGHT_GRAD,
    Floats,
    Ints,
    point_rows,
)

F, G, W, U = range(4)
"""Rows of a stage's task numbers."""
ROW_BY_KIND = {"F": F, "B": G, "I": G, "W": W}


class Orders(NamedTuple):
    """Task numbers of every machine, one machine after the other; updates are left out."""

    first: Ints
    """Machine -> its first place; one more entry than machines."""
    tasks: Ints

    def split(self) -> list[list[int]]:
        """The tasks of every machine."""
        return [each.tolist() for each in np.split(self.tasks, self.first[1:-1])]


def join_orders(lines: Sequence[Sequence[int]]) -> Orders:
    """Orders from a list for every machine."""
    first = np.zeros(len(lines) + 1, dtype=np.int64)
    np.cumsum([len(line) for line in lines], out=first[1:])
    tasks = np.fromiter((task for line in lines for task in line), np.int64, int(first[-1]))
    return Orders(first, tasks)


class Feeds(NamedTuple):
    """What the end of each task sets going: rows by sender."""

    first: Ints
    sender: Ints
    reader: Ints
    delay_s: Floats


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
    delay_by_ends: dict[tuple[int, int], float]
    """Seconds from the end of a task of one stage to the start of the task that it feeds."""

    @property
    def num_tasks(self) -> int:
        """Length of a row of values by task number, tasks that are not used included."""
        return 4 * sum(self.count_by_stage)

    @cached_property
    def first(self) -> Ints:
        """`first_by_stage` as an array."""
        return np.array(self.first_by_stage, dtype=np.int64)

    @cached_property
    def count(self) -> Ints:
        """`count_by_stage` as an array."""
        return np.array(self.count_by_stage, dtype=np.int64)

    @cached_property
    def size(self) -> Ints:
        """By stage: samples of a micro-batch."""
        return np.array([each.micro_batch_size for each in self.priced.stages], dtype=np.int64)

    @cached_property
    def machine(self) -> Ints:
        """`machine_by_stage` as an array."""
        return np.array(self.machine_by_stage, dtype=np.int64)

    @cached_property
    def stage_of(self) -> Ints:
        """By task."""
        return np.repeat(np.arange(len(self.count)), 4 * self.count)

    @cached_property
    def row_of(self) -> Ints:
        """By task: F, G, W or U."""
        rows = np.tile(np.arange(4), len(self.count))
        return np.repeat(rows, np.repeat(self.count, 4))

    @cached_property
    def machine_of(self) -> Ints:
        """By task."""
        return self.machine[self.stage_of]

    @cached_property
    def seconds(self) -> Floats:
        """By stage and kind, in the order of KINDS."""
        return np.array(
            [
                (
                    each.forward_s,
                    each.backward_s,
                    each.input_grad_s,
                    each.weight_grad_s,
                    each.reduce_s,
                    each.update_s,
                )
                for each in self.priced.stages
            ],
            dtype=np.float64,
        ).reshape(-1, len(KINDS))

    @cached_property
    def closing(self) -> Floats:
        """By stage: seconds of one reduction of the gradients and the update."""
        return np.array([self.closing_s(s) for s in range(len(self.count_by_stage))])

    @cached_property
    def feeds(self) -> Feeds:
        """All feeds, by sender."""
        backward = self.priced.backward_edges
        rows = [(a, F, b, F, self.delay_by_ends[a, b]) for a, b in self.priced.edges]
        rows += [(b, G, a, G, self.delay_by_ends[b, a]) for a, b in backward]
        rows += [(s, row, s, row + 1, 0.0) for s in range(len(self.count)) for row in (F, G)]
        src, src_row, dst, dst_row, delay = zip(*rows, strict=True)
        stage, other = np.array(src), np.array(dst)
        counts = self.count[stage]
        link = np.repeat(np.arange(len(rows)), counts)
        micro_batch = np.arange(len(link)) - np.repeat(np.cumsum(counts) - counts, counts)
        sender = (self.first[stage] + np.array(src_row) * counts)[link] + micro_batch
        reader = (self.first[other] + np.array(dst_row) * self.count[other])[link]
        reader = reader + micro_batch * self.size[stage][link] // self.size[other][link]
        order = np.argsort(sender, kind="stable")
        return Feeds(
            point_rows(self.num_tasks, sender),
            sender[order],
            reader[order],
            np.array(delay)[link][order],
        )

    @cached_property
    def gradient_readers(self) -> Neighbours:
        """Stages to which each stage sends gradients."""
        pairs = ((dst, src) for src, dst in self.priced.backward_edges)
        return collect_neighbours(len(self.count_by_stage), pairs)

    @cached_property
    def saved_by_stage(self) -> tuple[int, ...]:
        """Saved bytes of one micro-batch; 0 for a stage that needs no backward."""
        return tuple(p.saved_bytes if p.needs_backward else 0 for p in self.priced.stages)

    @cached_property
    def num_fed(self) -> Ints:
        """By task: what feeds it."""
        return np.bincount(self.feeds.reader, minlength=self.num_tasks)

    @cached_property
    def cast(self) -> Cast:
        """The devices that are played for the time of a step."""
        return cast_devices(self.priced, fold=True)

    @property
    def is_shared(self) -> bool:
        """Whether a device has several stages."""
        return len(self.stages_by_machine) < len(self.count_by_stage)

    def number_of(self, stage: int, row: int, micro_batch: int) -> int:
        """The number of a task."""
        return self.first_by_stage[stage] + row * self.count_by_stage[stage] + micro_batch

    def place_of(self, number: int) -> tuple[int, int, int]:
        """Stage, row and micro-batch of a task number."""
        stage = int(self.stage_of[number])
        row, micro_batch = divmod(
            int(number) - self.first_by_stage[stage], self.count_by_stage[stage]
        )
        return stage, row, micro_batch

    def closing_s(self, stage: int) -> float:
        """Seconds of one reduction of the gradients and the update."""
        return self.priced.stages[stage].closing_s

    def kinds_for(self, split: Sequence[bool]) -> Ints:
        """By task: its kind when these stages split their backward; that of U stands for R, too."""
        key = tuple(split)
        if key not in self._kinds_by_split:
            gradient = np.where(np.array(split, dtype=bool), INPUT_GRAD, BACKWARD)
            none = np.zeros_like(gradient)
            rows = (none + FORWARD, gradient, none + WEIGHT_GRAD, none + UPDATE)
            kinds = np.repeat(np.stack(rows, axis=1).ravel(), np.repeat(self.count, 4))
            self._kinds_by_split[key] = kinds
        return self._kinds_by_split[key]

    @cached_property
    def _kinds_by_split(self) -> dict[tuple[bool, ...], Ints]:
        return {}

    def durations_for(self, kinds: Ints) -> Floats:
        """By task: its seconds, with the reduction those of an update."""
        return self._durations[self.stage_of, kinds]

    @cached_property
    def _durations(self) -> Floats:
        whole = self.seconds.copy()
        whole[:, UPDATE] = self.closing
        return whole


def make_shop(priced: PricedStages) -> Shop:
    """The job shop of priced stages; refuses neighbours whose micro-batches do not nest."""
    check_sizes(priced)
    groups = sorted({tuple(sorted(stage.devices)) for stage in priced.stages})
    number = {devices: machine for machine, devices in enumerate(groups)}
    machine_by_stage = tuple(number[tuple(sorted(stage.devices))] for stage in priced.stages)
    hosted: list[list[int]] = [[] for _ in groups]
    for s, machine in enumerate(machine_by_stage):
        hosted[machine].append(s)
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
        stages_by_machine=tuple(map(tuple, hosted)),
        machine_by_stage=machine_by_stage,
        room_by_machine=room,
        first_by_stage=tuple(first[:-1]),
        count_by_stage=counts,
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


def covering(priced: PricedStages, stage: int, micro_batch: int, other: int) -> range:
    """Micro-batches of `other` that hold the samples of one micro-batch of `stage`."""
    size, theirs = priced.stages[stage].micro_batch_size, priced.stages[other].micro_batch_size
    return range(micro_batch * size // theirs, -(-(micro_batch + 1) * size // theirs))


def number_tasks(shop: Shop, schedule: Schedule) -> tuple[Orders, Ints]:
    """The orders of a schedule's machines, and the kinds of all tasks."""
    kinds = shop.kinds_for([False] * len(shop.count_by_stage)).copy()
    lines: list[list[int]] = []
    for devices in shop.devices_by_machine:
        tasks = schedule.tasks_by_device[devices[0]]
        lines.append([shop.number_of(t.stage, ROW_BY_KIND[t.kind], t.micro_batch) for t in tasks])
        halves = [n for n, task in zip(lines[-1], tasks, strict=True) if task.kind == "I"]
        kinds[halves] = INPUT_GRAD
    return join_orders(lines), kinds


def name_tasks(shop: Shop, orders: Orders, kinds: Ints, *, name: str) -> Schedule:
    """The schedule of these orders."""
    letters: tuple[Kind, ...] = ("F", "B", "I", "W")
    stage = shop.stage_of[orders.tasks]
    micro_batch = (orders.tasks - shop.first[stage]) % shop.count[stage]
    columns = (stage.tolist(), kinds[orders.tasks].tolist(), micro_batch.tolist())
    tasks = [Task(s, letters[kind], m) for s, kind, m in zip(*columns, strict=True)]
    by_device: list[tuple[Task, ...]] = [() for _ in shop.priced.memory_bytes_by_device]
    for machine, devices in enumerate(shop.devices_by_machine):
        line = tuple(tasks[orders.first[machine] : orders.first[machine + 1]])
        for device in devices:
            by_device[device] = line
    return Schedule(name=name, tasks_by_device=tuple(by_device))
