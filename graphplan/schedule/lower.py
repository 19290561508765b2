"""Lowering: a compute-only schedule becomes a program with transfers, reductions and updates.

The transfers of one direction between two devices are posted in one order at both ends: that in
which their producers end in the evaluated run. A send follows its producer at once. A receive is
posted one task or more ahead of the task that needs it, and no later than its message sets out. The
two directions do not wait for each other: a receive that had to follow an own send would often be
posted only when its task already waits for it.

Why this cannot deadlock: number all tasks by when they end (ties by one order in which they can
run). When the first n have run, task n+1 has posted its receives, with all that come before them in
their directions; the sends of these have been posted, since their producers are among the first n,
in equal order. So all of these complete, and task n+1 finds its inputs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule
from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan.schedule.evaluate import close_orders, durations_of, run_schedule
from graphplan.schedule.shop import F, G, Orders, Shop, covering, make_shop, number_tasks
from graphplan.schedule.updates import check_policy, list_updates, place_updates


@dataclass(frozen=True)
class Post:
    """A transfer on its way between two machines."""

    transfer: Transfer
    src: int
    """Machine of the sender."""
    dst: int
    key: tuple[int, int]
    """Place in the one order of all transfers: rank of the producer, place among its sends."""
    producer: int
    """Position of the producer in the sender's order."""
    consumer: int
    """Position of the first task that needs it in the receiver's order."""


def lower_schedule(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> Program:
    """Add transfers, gradient reductions and updates to a schedule that does not deadlock."""
    check_policy(priced, policy)
    shop = make_shop(priced)
    orders = number_tasks(shop, schedule)
    ranks = rank_tasks(shop, orders, schedule, policy)
    posts_by_machine = plan_transfers(shop, orders, ranks)
    lines: list[tuple[Instruction, ...]] = [() for _ in priced.memory_bytes_by_device]
    for machine, devices in enumerate(shop.devices_by_machine):
        line = assemble(
            schedule.tasks_by_device[devices[0]],
            sends=place_sends(posts_by_machine[machine], machine),
            receives=place_receives(posts_by_machine[machine], machine, ranks[machine]),
            updates=name_updates(shop, orders[machine], policy),
        )
        for device in devices:
            lines[device] = line
    return Program(instructions_by_device=tuple(lines))


def rank_tasks(
    shop: Shop, orders: Orders, schedule: Schedule, policy: WeightPolicy
) -> list[list[int]]:
    """For every machine and position the task's rank by end time over all machines."""
    closed = close_orders(shop, orders, policy)
    run = run_schedule(shop, closed, durations_of(shop, schedule), name=schedule.name)
    by_end = sorted(run.sequence, key=run.ends.__getitem__)  # stable: ties stay as they ran
    rank_by_task = {task: rank for rank, task in enumerate(by_end)}
    return [[rank_by_task[task] for task in order] for order in orders]


def plan_transfers(shop: Shop, orders: Orders, ranks: list[list[int]]) -> list[list[Post]]:
    """By machine, the transfers that it sends or receives, in the one order of all transfers."""
    position = {task: i for order in orders for i, task in enumerate(order)}
    posts = []
    for machine, order in enumerate(orders):
        for i, number in enumerate(order):
            stage, row, m = shop.place_of(number)
            consumers = []
            for other, first in find_consumers(shop, stage, row, m):
                there = shop.machine_by_stage[other]
                if there != machine:
                    at = position[first]
                    consumers.append((ranks[there][at], at, there, other))
            # What is needed first leaves first.
            for k, (_, at, there, other) in enumerate(sorted(consumers)):
                transfer = Transfer(stage, other, "F" if row == F else "B", m)
                posts.append(Post(transfer, machine, there, (ranks[machine][i], k), i, at))
    by_machine: list[list[Post]] = [[] for _ in orders]
    for post in sorted(posts, key=lambda post: post.key):
        by_machine[post.src].append(post)
        by_machine[post.dst].append(post)
    return by_machine


def find_consumers(shop: Shop, stage: int, row: int, m: int) -> Iterator[tuple[int, int]]:
    """Stages that read what a task makes, each with the number of its first task that does."""
    priced = shop.priced
    others = {F: priced.successors[stage], G: shop.gradient_readers[stage]}.get(row, ())
    for other in others:
        yield other, shop.number_of(other, row, covering(priced, stage, m, other)[0])


def place_sends(posts: list[Post], machine: int) -> dict[int, list[Transfer]]:
    """Sends of a machine by the position of the task that they follow."""
    sends: dict[int, list[Transfer]] = {}
    for post in posts:
        if post.src == machine:
            sends.setdefault(post.producer, []).append(post.transfer)
    return sends


def place_receives(posts: list[Post], machine: int, ranks: list[int]) -> dict[int, list[Transfer]]:
    """Receives of a machine by the position of the task that they precede."""
    receives: dict[int, list[Transfer]] = {}
    latest: dict[int, int] = {}
    for post in reversed([post for post in posts if post.dst == machine]):
        set_out = bisect_left(ranks, post.key[0])
        slot = min(set_out, max(0, post.consumer - 1))
        # A receive that is needed late still precedes those that its sender posts after it.
        latest[post.src] = min(slot, latest.get(post.src, slot))
        receives.setdefault(latest[post.src], []).append(post.transfer)
    return {slot: transfers[::-1] for slot, transfers in receives.items()}


def name_updates(shop: Shop, order: list[int], policy: WeightPolicy) -> dict[int, list[Task]]:
    """R and U by the position of the task that they follow."""
    return {
        position: [task for s, m in updates for task in list_updates(shop.priced, s, m, policy)]
        for position, updates in place_updates(shop, order, policy).items()
    }


def assemble(
    tasks: tuple[Task, ...],
    *,
    sends: dict[int, list[Transfer]],
    receives: dict[int, list[Transfer]],
    updates: dict[int, list[Task]],
) -> tuple[Instruction, ...]:
    """One machine's line: after each task its sends, the receives of what follows, its updates."""
    line: list[Instruction] = [*receives.get(0, ())]
    for i, task in enumerate(tasks):
        line += [task, *sends.get(i, ()), *receives.get(i + 1, ()), *updates.get(i, ())]
    return tuple(line)
