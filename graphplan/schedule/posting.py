"""The loops of lowering: where every transfer is posted, and the lines of all devices.

`place_posts` goes through the tasks in the order of their ends. What a task sends is posted behind
it, what is needed first leaves first; by then each machine has ended so many tasks, and behind
these, or one task ahead of the one that needs it, the receive is posted. `write_lines` counts what
every slot of every device holds and fills it, sends before receives. Nothing is sorted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphplan.jit import compile_loop
from graphplan.play.script import REDUCE, UPDATE, Ints


class Ways(NamedTuple):
    """The transfers between different machines: rows by 2 * sending stage + (0: F, 1: G)."""

    first: Ints
    reader: Ints
    """Receiving stage."""
    sender: Ints
    row: Ints
    base: Ints
    """Way -> the number of its first transfer: one for each micro-batch of the sender."""


class Posts(NamedTuple):
    """All transfers in the one order of all machines; places count the tasks of a machine."""

    way: Ints
    micro_batch: Ints
    send: Ints
    """The task that it follows."""
    receive: Ints
    """The task that it follows, -1 before the first one."""
    reader: Ints
    """The first task that needs it."""


@compile_loop
def place_posts(
    tables: tuple[Ints, Ints, Ints, Ints, Ints, Ints],
    orders: tuple[Ints, Ints],
    ways: Ways,
    by_end: Ints,
) -> Ints:
    """The columns of Posts; `by_end` has the tasks in the order of their ends."""
    first, count, size, machine, stage_of, _ = tables
    line_first, line = orders
    num_machines, num_posts = len(line_first) - 1, ways.base[-1]
    rank, place = np.zeros(len(stage_of), np.int64), np.zeros(len(stage_of), np.int64)
    for k in range(len(by_end)):
        rank[by_end[k]] = k
    for here in range(num_machines):
        for at in range(line_first[here], line_first[here + 1]):
            place[line[at]] = at - line_first[here]
    posts = np.zeros((5, num_posts), np.int64)
    way, micro_batch, send, receive, reader = posts[0], posts[1], posts[2], posts[3], posts[4]
    num_ended = np.zeros(num_machines, np.int64)
    num = 0
    for task in by_end:
        stage = stage_of[task]
        row, m = (task - first[stage]) // count[stage], (task - first[stage]) % count[stage]
        if row > 2:
            continue  # an update
        start, way_at = num, 2 * stage + min(row, 1)
        end = ways.first[way_at + 1] if row < 2 else ways.first[way_at]
        for k in range(ways.first[way_at], end):
            other = ways.reader[k]
            read = first[other] + row * count[other] + m * size[stage] // size[other]
            at = num
            while at > start and rank[reader[at - 1]] > rank[read]:
                way[at], reader[at] = way[at - 1], reader[at - 1]
                at -= 1  # What is needed first leaves first.
            way[at], reader[at] = k, read
            num += 1
        for at in range(start, num):
            there = machine[stage_of[reader[at]]]
            micro_batch[at], send[at] = m, task
            receive[at] = min(num_ended[there], max(0, place[reader[at]] - 1))
        num_ended[machine[stage]] += 1
    latest = np.full(num_machines * num_machines, len(line), np.int64)
    for at in range(num - 1, -1, -1):
        # A receive that is needed late still precedes those that its sender posts after it.
        here, there = machine[stage_of[send[at]]], machine[stage_of[reader[at]]]
        pair = here * num_machines + there
        receive[at] = latest[pair] = min(receive[at], latest[pair])
    return posts


@compile_loop
def write_lines(
    tables: tuple[Ints, Ints, Ints, Ints, Ints, Ints],
    orders: tuple[tuple[Ints, Ints], tuple[Ints, Ints]],
    closing: tuple[Ints, bool],
    cast: tuple[Ints, Ints, Ints, Ints],
    ways: Ways,
    posts: Posts,
) -> tuple[tuple[Ints, Ints, Ints, Ints], tuple[Ints, Ints, Ints, Ints]]:
    """The tasks of all devices, and what they post: see `_write_tasks` and `_write_slots`."""
    lines, at_by_task = _write_tasks(tables, orders[1], closing, cast[0])
    return lines, _write_slots(tables, orders[0], lines[0], at_by_task, cast, ways, posts)


def _write_tasks(
    tables: tuple[Ints, Ints, Ints, Ints, Ints, Ints],
    closed: tuple[Ints, Ints],
    closing: tuple[Ints, bool],
    machine_by_device: Ints,
) -> tuple[tuple[Ints, Ints, Ints, Ints], Ints]:
    """The lines of the devices: an update becomes R and U, under `local` U and R.

    Also where in the line of its devices each of the shop's tasks is.
    """
    first, count, _, _, stage_of, kinds = tables
    line_first, line = closed
    reduces, averages = closing
    num_devices = len(machine_by_device)
    task_first, at_by_task = np.zeros(num_devices + 1, np.int64), np.zeros(len(stage_of), np.int64)
    for device in range(num_devices):
        here = machine_by_device[device]
        num = 0
        for at in range(line_first[here], line_first[here + 1]) if here >= 0 else range(0):
            at_by_task[line[at]] = num
            is_update = kinds[line[at]] == UPDATE
            num += 2 if is_update and reduces[stage_of[line[at]]] else 1
        task_first[device + 1] = task_first[device] + num
    tasks = np.zeros((3, task_first[-1]), np.int64)
    stage, kind, micro_batch = tasks[0], tasks[1], tasks[2]
    for device in range(num_devices):
        here, to = machine_by_device[device], task_first[device]
        for at in range(line_first[here], line_first[here + 1]) if here >= 0 else range(0):
            task = line[at]
            s = stage_of[task]
            num = 2 if kinds[task] == UPDATE and reduces[s] else 1
            for i in range(num):
                stage[to], kind[to] = s, kinds[task]
                micro_batch[to] = (task - first[s]) % count[s]
                if num == 2 and (i == 1) == averages:
                    kind[to] = REDUCE
                to += 1
    return (task_first, stage, kind, micro_batch), at_by_task


def _write_slots(
    tables: tuple[Ints, Ints, Ints, Ints, Ints, Ints],
    orders: tuple[Ints, Ints],
    task_first: Ints,
    at_by_task: Ints,
    cast: tuple[Ints, Ints, Ints, Ints],
    ways: Ways,
    posts: Posts,
) -> tuple[Ints, Ints, Ints, Ints]:
    """What is posted in every slot: sends, then receives, each in the one order of all transfers.

    Message -> wire (`message_first`), slot -> messages (`post_first`, `post_message`), readers.
    """
    count, machine, stage_of = tables[1], tables[3], tables[4]
    machine_by_device, way_of, src_device, dst_device = cast
    num_tasks = task_first[-1]
    message_first, wire_first, wires = _sort_wires(count, way_of, ways)
    reader = np.zeros(message_first[-1], np.int64)
    post_message = np.zeros(2 * message_first[-1], np.int64)
    post_first = np.zeros(num_tasks + len(machine_by_device) + 1, np.int64)
    filled = post_first.copy()
    # Count what every slot holds, then fill it: all sends before all receives.
    for turn in range(4):
        if turn == 2:
            post_first = np.cumsum(post_first)
            filled = post_first.copy()
        for at in range(len(posts.way)):
            way, place = posts.way[at], posts.receive[at]
            there = machine[stage_of[posts.reader[at]]]
            for k in range(wire_first[way], wire_first[way + 1]):
                wire = wires[k]
                message = message_first[wire] + posts.micro_batch[at]
                if turn % 2 == 0:
                    slot = task_first[src_device[wire]] + at_by_task[posts.send[at]]
                elif place == 0:
                    slot = num_tasks + dst_device[wire]
                else:
                    before = orders[1][orders[0][there] + place - 1]
                    slot = task_first[dst_device[wire]] + at_by_task[before]
                if turn < 2:
                    post_first[slot + 1] += 1
                    reader[message] = task_first[dst_device[wire]] + at_by_task[posts.reader[at]]
                else:
                    post_message[filled[slot]] = message
                    filled[slot] += 1
    return message_first, post_first, post_message, reader


def _sort_wires(count: Ints, way_of: Ints, ways: Ways) -> tuple[Ints, Ints, Ints]:
    """Wire -> its first message; way -> its first place among the wires sorted by way; those."""
    num_wires, num_ways = len(way_of), len(ways.reader)
    message_first, wire_first = np.zeros(num_wires + 1, np.int64), np.zeros(num_ways + 1, np.int64)
    for wire in range(num_wires):
        way = way_of[wire]
        num = count[ways.sender[way]] if way >= 0 else 0
        message_first[wire + 1] = message_first[wire] + num
        if way >= 0:
            wire_first[way + 1] += 1
    wire_first = np.cumsum(wire_first)
    wires, filled = np.zeros(num_wires, np.int64), wire_first.copy()
    for wire in range(num_wires):
        if way_of[wire] >= 0:
            wires[filled[way_of[wire]]] = wire
            filled[way_of[wire]] += 1
    return message_first, wire_first, wires
