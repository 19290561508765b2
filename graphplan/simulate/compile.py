"""compile_program: lower a program to the flat arrays that the engine runs.

What can be decided without time is decided here: numbers that do not exist, transfers with one end,
needs that nothing satisfies, two ends of a link that post in different orders. What remains for the
engines are the moments, and cycles of waiting.
"""

from __future__ import annotations

import numpy as np

from graphplan.errors import InvalidProgram
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.simulate.compiled import (
    KINDS,
    REDUCE,
    Compiled,
    Floats,
    Ints,
    Messages,
    Tasks,
    Wires,
)
from graphplan.simulate.listing import Listing, list_instructions
from graphplan.simulate.places import find_places, name_task
from graphplan.simulate.posting import find_posts, make_messages
from graphplan.simulate.wiring import Wiring, collect_rows, wire_stages

SLACK = 1024
"""How far micro-batch numbers may exceed the number of a stage's tasks: tables are dense."""


def compile_program(priced: PricedStages, program: Program) -> Compiled:
    """The program as arrays; raises InvalidProgram when it can never run."""
    wiring = wire_stages(priced)
    listing = list_instructions(program)
    _check_devices(priced, listing)
    num_micro_batches = _count_micro_batches(wiring, listing)
    tasks = _make_tasks(priced, wiring, listing)
    places = find_places(wiring, tasks, num_micro_batches)
    posts = find_posts(wiring, listing, num_micro_batches)
    messages, post_message = make_messages(wiring, listing, tasks, places, posts)
    return _assemble(wiring, tasks, messages, posts.slot, post_message)


def _assemble(
    wiring: Wiring,
    tasks: Tasks,
    messages: Messages,
    slot: Ints,
    post_message: Ints,
) -> Compiled:
    """Put the parts together; the posts come in the order of their slots."""
    num_devices = len(tasks.first) - 1
    num_slots = len(tasks.stage) + num_devices
    group_first, group_task = _collect_groups(tasks)
    return Compiled(
        num_devices=num_devices,
        tasks=tasks,
        messages=messages,
        wires=wiring.wires,
        channels=wiring.channels,
        post_first=np.concatenate(([0], np.cumsum(np.bincount(slot, minlength=num_slots)))),
        post_message=post_message,
        num_missing=_count_missing(tasks, messages),
        group_first=group_first,
        group_task=group_task,
        has_shared_channel=_shares_channel(wiring.wires),
    )


def _check_devices(priced: PricedStages, listing: Listing) -> None:
    if listing.num_devices != len(priced.memory_bytes_by_device):
        raise InvalidProgram(
            f"The program has {listing.num_devices} devices, the prices have"
            f" {len(priced.memory_bytes_by_device)}.",
            remedy="Give the program one line for each device, an empty one if it has no work.",
        )


def _count_missing(tasks: Tasks, messages: Messages) -> Ints:
    counts = np.bincount(messages.consumer, minlength=len(tasks.stage) + 1) + 1
    counts[:-1] += tasks.group >= 0
    return counts


def _count_micro_batches(wiring: Wiring, listing: Listing) -> Ints:
    """By stage, one more than the largest micro-batch number in the program."""
    stage = np.concatenate((listing.task_stage, listing.post_src, listing.post_dst))
    for bad in stage[(stage < 0) | (stage >= wiring.num_stages)][:1]:
        raise InvalidProgram(
            f"The program names stage {bad}; there are {wiring.num_stages} stages.",
            remedy="Lower the schedule again for these prices.",
        )
    largest = np.full(wiring.num_stages, -1, dtype=np.int64)
    np.maximum.at(largest, listing.task_stage, listing.task_micro_batch)
    np.maximum.at(largest, listing.post_src, listing.post_micro_batch)
    limit = np.bincount(listing.task_stage, minlength=wiring.num_stages) + SLACK
    smallest = min(listing.task_micro_batch.min(initial=0), listing.post_micro_batch.min(initial=0))
    for bad in np.flatnonzero((largest >= limit) | (smallest < 0))[:1]:
        raise InvalidProgram(
            f"The program has a micro-batch {min(smallest, largest[bad]) or largest[bad]} of stage"
            f" {bad}, but only {limit[bad] - SLACK} tasks of that stage.",
            remedy="Number the micro-batches from 0.",
        )
    return largest + 1


def _make_tasks(priced: PricedStages, wiring: Wiring, listing: Listing) -> Tasks:
    device = np.repeat(np.arange(listing.num_devices), np.diff(listing.task_first))
    seat = wiring.find_seats(device, listing.task_stage)
    tasks = Tasks(
        first=listing.task_first,
        device=device,
        stage=listing.task_stage,
        kind=listing.task_kind,
        micro_batch=listing.task_micro_batch,
        seat=seat,
        seconds=_tabulate_seconds(priced)[listing.task_stage, listing.task_kind],
        group=np.full(len(device), -1, dtype=np.int64),
    )
    for bad in np.flatnonzero(seat < 0)[:1]:
        raise InvalidProgram(
            f"Device {device[bad]} runs {name_task(tasks, int(bad))}, but stage"
            f" {tasks.stage[bad]} is on devices {list(priced.stages[tasks.stage[bad]].devices)}.",
            remedy="Lower the schedule again for these prices.",
        )
    return tasks._replace(group=_number_groups(priced, tasks))


def _tabulate_seconds(priced: PricedStages) -> Floats:
    """Seconds by stage and kind, in the order of KINDS."""
    return np.array(
        [
            (
                stage.forward_s,
                stage.backward_s,
                stage.input_grad_s,
                stage.weight_grad_s,
                stage.reduce_s,
                stage.update_s,
            )
            for stage in priced.stages
        ],
        dtype=np.float64,
    ).reshape(-1, len(KINDS))


def _number_groups(priced: PricedStages, tasks: Tasks) -> Ints:
    """The all-reduces, numbered; every replica must take part in each."""
    group = np.full(len(tasks.stage), -1, dtype=np.int64)
    chosen = np.flatnonzero(tasks.kind == REDUCE)
    if len(chosen):
        width = int(tasks.micro_batch.max()) + 1
        key = tasks.stage[chosen] * width + tasks.micro_batch[chosen]
        _, start, number, count = np.unique(
            key, return_index=True, return_inverse=True, return_counts=True
        )
        replicas = np.array([len(priced.stages[s].devices) for s in tasks.stage[chosen[start]]])
        for bad in np.flatnonzero(count != replicas)[:1]:
            raise InvalidProgram(
                f"{name_task(tasks, int(chosen[start[bad]]))} is {count[bad]} times in the program;"
                f" its stage has {replicas[bad]} replicas.",
                remedy="Put an all-reduce once on every device of the stage.",
            )
        group[chosen] = number
    return group


def _collect_groups(tasks: Tasks) -> tuple[Ints, Ints]:
    chosen = np.flatnonzero(tasks.group >= 0)
    rows = collect_rows(int(tasks.group.max(initial=-1)) + 1, tasks.group[chosen], chosen)
    return rows.first, rows.items


def _shares_channel(wires: Wires) -> bool:
    pairs = {
        *zip(
            wires.channel.tolist(),
            wires.src_device.tolist(),
            wires.dst_device.tolist(),
            strict=True,
        )
    }
    return len(pairs) > len({channel for channel, _, _ in pairs})
