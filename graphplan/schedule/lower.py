"""Lowering: a compute-only schedule becomes a program with transfers, reductions and updates.

The transfers of one direction between two devices are posted in one order at both ends: that in
which their producers end when the orders are followed. A send follows its producer at once. A
receive is posted one task or more ahead of the task that needs it, and no later than its message
sets out. The two directions do not wait for each other: a receive that had to follow an own send
would often be posted only when its task already waits for it.

    two stages, two micro-batches, 1F1B: what is posted between the tasks (> sends, < receives)

    machine 0   0F0 >0F0  0F1 >0F1 <1B0   0B0 <1B1   0B1
    machine 1   <0F0 <0F1   1F0   1B0 >1B0   1F1   1B1 >1B1

Why this cannot deadlock: number all tasks by when they end (ties by the order in which they began).
When the first n have run, task n+1 has posted its receives, with all that come before them in
their directions; the sends of these have been posted, since their producers are among the first n,
in equal order. So all of these complete, and task n+1 finds its inputs.

All of it happens in numbers (posting.py), written out as a script for any cast: for the devices
that are played, or with one device for each machine and one wire for each transfer, from which a
Program is read off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule
from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan.play.cast import Cast, Lanes, Wires, assemble_script, cast_devices
from graphplan.play.player import play_script
from graphplan.play.script import KINDS, Ints, Script, Tasks, Times
from graphplan.schedule.dispatch import FLUSH, Followed, check_policy, follow_orders
from graphplan.schedule.posting import Posts, Ways, place_posts, write_lines
from graphplan.schedule.shop import F, G, Shop, make_shop, number_tasks


class Lowered(NamedTuple):
    """A program, and the script of all of its devices."""

    program: Program
    script: Script
    tasks: Tasks


def lower_schedule(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> Program:
    """Add transfers, gradient reductions and updates to a schedule that does not deadlock."""
    shop, followed, kinds = _follow_schedule(priced, schedule, policy)
    return _write_program(shop, followed, kinds, policy)


def lower_fully(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> Lowered:
    """The same, with the script that the simulator plays for it."""
    shop, followed, kinds = _follow_schedule(priced, schedule, policy)
    cast = cast_devices(priced, fold=False)
    script, tasks = write_script(shop, followed, kinds, cast, policy)
    return Lowered(_write_program(shop, followed, kinds, policy), script, tasks)


def _follow_schedule(
    priced: PricedStages, schedule: Schedule, policy: WeightPolicy
) -> tuple[Shop, Followed, Ints]:
    """The shop, the orders with their times, and the kinds of all tasks."""
    check_policy(priced, policy)
    shop = make_shop(priced)
    orders, kinds = number_tasks(shop, schedule)
    followed = follow_orders(shop, orders, kinds, policy=policy)
    if followed is None:
        raise refuse_deadlock(schedule.name)
    return shop, followed, kinds


def refuse_deadlock(name: str) -> InvalidOption:
    """The error for orders that do not run."""
    return InvalidOption(
        f"Schedule {name!r} deadlocks: its tasks wait for one another in a circle.",
        remedy="Use a schedule that graphplan built, for example 1f1b.",
    )


def play_orders(
    shop: Shop, followed: Followed, kinds: Ints, policy: WeightPolicy = FLUSH
) -> tuple[Script, Times]:
    """What the simulator makes of the program of these orders."""
    script, _ = write_script(shop, followed, kinds, shop.cast, policy)
    return script, play_script(script)


def list_ways(shop: Shop) -> Ways:
    """The transfers between different machines."""
    readers = (shop.priced.successors, shop.gradient_readers)
    machine, num = shop.machine_by_stage, len(shop.count_by_stage)
    rows = [
        (s, row, other)
        for s in range(num)
        for row in (F, G)
        for other in readers[row][s]
        if machine[other] != machine[s]
    ]
    sender, row, reader = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    first = np.searchsorted(2 * sender + row, np.arange(2 * num + 1))
    base = np.append(0, np.cumsum(shop.count[sender]))
    return Ways(first, reader, sender, row, base)


def write_script(
    shop: Shop,
    followed: Followed,
    kinds: Ints,
    cast: Cast,
    policy: WeightPolicy = FLUSH,
    ways: Ways | None = None,
) -> tuple[Script, Tasks]:
    """The program of these orders on a cast, as a script."""
    ways = ways or list_ways(shop)
    times, stages = followed.times, shop.priced.stages
    by_end = times.sequence[np.argsort(times.task_end[times.sequence], kind="stable")]
    tables = (shop.first, shop.count, shop.size, shop.machine, shop.stage_of, kinds)
    orders = tuple(followed.orders), tuple(followed.closed)
    posts = Posts(*place_posts(tables, orders[0], ways, by_end))
    # One device may still have gradients of tied weights to reduce with other stages.
    reduces = np.array(
        [len(s.devices) > 1 or s.reduce_s > 0 or s.reduction is not None for s in stages],
        dtype=np.int64,
    )
    wires = cast.wires
    way_of = _find_ways(ways, wires, len(stages))
    lines, slots = write_lines(
        tables,
        orders,
        (reduces, policy.name == "local"),
        (_find_machines(shop, cast), way_of, wires.src_device, wires.dst_device),
        ways,
        posts,
    )
    first, stage, kind, micro_batch = lines
    message_first, post_first, post_message, reader = slots
    device = np.repeat(np.arange(len(cast.devices)), np.diff(first))
    tasks = Tasks(first, device, stage, kind, micro_batch)
    wire = np.repeat(np.arange(len(wires.src)), np.diff(message_first))
    seconds, slots = shop.seconds[stage, kind], (post_first, post_message)
    return assemble_script(shop.priced, tasks, seconds, cast, wire, reader, slots), tasks


def _find_machines(shop: Shop, cast: Cast) -> Ints:
    """By device of the cast: its machine, -1 for one without stages."""
    hosted = shop.priced.stages_by_device
    found = [shop.machine_by_stage[hosted[d][0]] if hosted[d] else -1 for d in cast.devices]
    return np.array(found, dtype=np.int64)


def _find_ways(ways: Ways, wires: Wires, num_stages: int) -> Ints:
    """By wire: the way that it is part of, -1 where nothing reads what it carries."""
    table = np.full((num_stages, num_stages), -1, dtype=np.int64)
    table[ways.sender, ways.reader] = np.arange(len(ways.reader))
    return table[wires.src, wires.dst]


def _cast_machines(shop: Shop, ways: Ways) -> Cast:
    """The first device of every machine, and one wire for each transfer."""
    devices = np.array([each[0] for each in shop.devices_by_machine], dtype=np.int64)
    none, zero = np.zeros(len(ways.reader), dtype=np.int64), np.zeros(len(ways.reader))
    ends = (shop.machine[ways.sender], shop.machine[ways.reader])
    wires = Wires(ways.sender, ways.reader, *ends, ways.row, none, none, zero, zero)
    return Cast(devices, wires, Lanes(none[:0], none[:0], none[:0]), 1)


def _write_program(shop: Shop, followed: Followed, kinds: Ints, policy: WeightPolicy) -> Program:
    """The instructions of every device: those of its machine."""
    ways = list_ways(shop)
    script, lines = write_script(shop, followed, kinds, _cast_machines(shop, ways), policy, ways)
    way = np.repeat(np.arange(len(ways.reader)), shop.count[ways.sender])[script.post_message]
    micro_batch = script.post_message - ways.base[way]
    columns = (ways.sender[way], ways.reader[way], ways.row[way], micro_batch)
    rows = zip(*(each.tolist() for each in columns), strict=True)
    transfers = [Transfer(src, dst, "B" if row else "F", m) for src, dst, row, m in rows]
    rows = zip(*(each.tolist() for each in lines[2:]), strict=True)
    tasks = [Task(stage, KINDS[kind], m) for stage, kind, m in rows]  # type: ignore[arg-type]
    bounds, num = script.post_first.tolist(), len(tasks)
    found: list[tuple[Instruction, ...]] = [() for _ in shop.priced.memory_bytes_by_device]
    for machine, devices in enumerate(shop.devices_by_machine):
        line: list[Instruction] = [*transfers[bounds[num + machine] : bounds[num + machine + 1]]]
        for task in range(lines.first[machine], lines.first[machine + 1]):
            line += [tasks[task], *transfers[bounds[task] : bounds[task + 1]]]
        for device in devices:
            found[device] = tuple(line)
    return Program(instructions_by_device=tuple(found))
