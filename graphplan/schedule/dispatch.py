"""Dispatch and follow: machines played with messages that never wait for one another.

A dispatch is a list schedule: every free machine begins its most urgent ready task. To follow is to
take the tasks in given orders. Both are the player's loop (play/player.py) on one script of the
shop, in which a message is a delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.play.choice import Freedom
from graphplan.play.player import play_script
from graphplan.play.script import (
    BACKWARD,
    INPUT_GRAD,
    Floats,
    Ints,
    Script,
    Times,
    no_buckets,
    point_rows,
)
from graphplan.schedule.shop import G, Orders, Shop, U, W

FLUSH = WeightPolicy(name="flush")


@dataclass(frozen=True)
class Rules:
    """What a dispatch obeys."""

    split: tuple[bool, ...]
    """By stage: I and W in place of B."""
    limits: tuple[int, ...]
    """By stage: micro-batches between F and the end of B or I."""
    priorities: Floats
    """By task number; the larger goes first."""
    patience: float = 0.0
    """Share of a ready task's time that a machine idles for a more urgent one."""


@dataclass(frozen=True)
class Followed:
    """Orders with their updates, and when everything happens."""

    orders: Orders
    """As they were given."""
    closed: Orders
    """With their updates."""
    times: Times

    @property
    def makespan_s(self) -> float:
        """The end of the last task."""
        return self.times.makespan_s

    @property
    def span_s(self) -> float:
        """The longest time from a machine's first start to its last end."""
        busy = np.flatnonzero(np.diff(self.closed.first))
        tasks, first = self.closed.tasks, self.closed.first
        ends = self.times.task_end[tasks[first[busy + 1] - 1]]
        starts = self.times.task_start[tasks[first[busy]]]
        return float((ends - starts).max(initial=0.0))


def dispatch_tasks(shop: Shop, rules: Rules) -> Followed | None:
    """Orders of all machines, or None if the tasks block one another for want of memory."""
    script = write_delays(shop, shop.kinds_for(rules.split))
    times = play_script(script, _make_freedom(shop, rules))
    num_rows = count_rows(shop, rules.split)
    if len(times.sequence) < int((num_rows * shop.count).sum() + (shop.closing > 0).sum()):
        return None
    machine = shop.machine_of[times.sequence]
    tasks = times.sequence[np.argsort(machine, kind="stable")]
    closed = Orders(point_rows(len(shop.devices_by_machine), machine), tasks)
    inner = shop.row_of[tasks] != U
    first = point_rows(len(shop.devices_by_machine), shop.machine_of[tasks[inner]])
    return Followed(Orders(first, tasks[inner]), closed, times)


def follow_orders(
    shop: Shop,
    orders: Orders,
    kinds: Ints,
    *,
    policy: WeightPolicy = FLUSH,
    durations: Floats | None = None,
) -> Followed | None:
    """Begin every task as early as its machine, its inputs and their messages allow.

    None if the orders deadlock. `durations` stand for those of the kinds.
    """
    closed = close_orders(shop, orders, policy)
    script = write_delays(shop, kinds, durations)
    times = play_script(script._replace(line_first=closed.first, line=closed.tasks))
    return None if len(times.sequence) < len(closed.tasks) else Followed(orders, closed, times)


def write_delays(shop: Shop, kinds: Ints, durations: Floats | None = None) -> Script:
    """The script of the shop's tasks, without orders."""
    feeds, num = shop.feeds, shop.num_tasks
    num_machines = len(shop.devices_by_machine)
    none = np.zeros(len(feeds.reader), dtype=np.int64)
    return Script(
        line_first=np.zeros(num_machines + 1, dtype=np.int64),
        line=none[:0],
        task_machine=shop.machine_of,
        task_seconds=shop.durations_for(kinds) if durations is None else durations,
        task_missing=shop.num_fed,
        task_group=np.full(num, -1, dtype=np.int64),
        post_first=feeds.first,
        post_message=np.arange(len(none)),
        message_reader=feeds.reader,
        message_channel=none,
        message_seconds=feeds.delay_s,
        message_latency_s=feeds.delay_s,
        group_first=np.zeros(1, dtype=np.int64),
        group_task=none[:0],
        num_channels=0,
        is_queued=False,
        **no_buckets(num)._asdict(),
    )


def count_rows(shop: Shop, split: Sequence[bool]) -> Ints:
    """By stage: 1 for forwards only, 2 with whole, 3 with split backwards."""
    stages = shop.priced.stages
    rows = [2 + halves if s.needs_backward else 1 for s, halves in zip(stages, split, strict=True)]
    return np.array(rows, dtype=np.int64)


def _make_freedom(shop: Shop, rules: Rules) -> Freedom:
    stages = shop.priced.stages
    kept = [each.saved_for_weights_bytes for each in stages]
    columns = (
        shop.first,
        shop.count,
        count_rows(shop, rules.split),
        rules.limits,
        shop.saved_by_stage,
        [each * halves for each, halves in zip(kept, rules.split, strict=True)],
        [each.workspace_bytes for each in stages],
        shop.closing > 0,
    )
    return Freedom(
        stage_of=shop.stage_of,
        priority=rules.priorities,
        stages=np.array(columns, dtype=np.int64).T.ravel(),
        hosted_first=np.cumsum([0, *map(len, shop.stages_by_machine)]),
        hosted=np.array([s for each in shop.stages_by_machine for s in each], dtype=np.int64),
        room=np.array(shop.room_by_machine, dtype=np.int64),
        patience=float(rules.patience),
    )


def close_orders(shop: Shop, orders: Orders, policy: WeightPolicy = FLUSH) -> Orders:
    """The orders with an update behind the last task of every `accumulate` micro-batches of a
    stage, or of all of them where a batch ends with a barrier."""
    tasks = orders.tasks
    stage, row = shop.stage_of[tasks], shop.row_of[tasks]
    backwards = np.flatnonzero((row == G) | (row == W))
    stage = stage[backwards]
    count = shop.count[stage]
    period = count if policy.is_synchronous else np.minimum(count, policy.accumulate)
    micro_batch = (tasks[backwards] - shop.first[stage]) % count
    update = shop.first[stage] + 3 * count + (micro_batch // period + 1) * period - 1
    last = np.full(shop.num_tasks, -1, dtype=np.int64)
    last[update] = backwards  # of equal indices numpy keeps the last value written
    updates = np.flatnonzero(last >= 0)
    behind = last[updates]
    order = np.argsort(behind)
    closed = np.insert(tasks, behind[order] + 1, updates[order])
    num_before = np.searchsorted(behind[order], orders.first)
    return Orders(orders.first + num_before, closed)


def measure_peaks(shop: Shop, orders: Orders, kinds: Ints) -> Ints:
    """The most bytes in use on each machine while it runs its order, fixed bytes included.

    This is the memory rule of `PricedStages`: F adds the saved bytes when it starts, B and W free
    at their end, I keeps the part that W needs.
    """
    tasks, stages = orders.tasks, shop.priced.stages
    stage, row, kind = shop.stage_of[tasks], shop.row_of[tasks], kinds[tasks]
    saved = np.array(shop.saved_by_stage, dtype=np.int64)[stage]
    kept = np.array([s.saved_for_weights_bytes for s in stages], dtype=np.int64)[stage]
    workspace = np.array([s.workspace_bytes for s in stages], dtype=np.int64)[stage]
    freed = np.where(kind == BACKWARD, saved, np.where(kind == INPUT_GRAD, saved - kept, 0))
    freed = np.where(row == W, kept, freed)
    held = np.cumsum(np.where(row == 0, saved, 0) - freed)
    machine = np.repeat(np.arange(len(orders.first) - 1), np.diff(orders.first))
    before = np.append(0, held)[orders.first[:-1]]
    during = held - before[machine] + freed + workspace
    peaks = np.zeros(len(orders.first) - 1, dtype=np.int64)
    np.maximum.at(peaks, machine, during)
    fixed = [sum(stages[s].fixed_bytes for s in hosted) for hosted in shop.stages_by_machine]
    return peaks + np.array(fixed, dtype=np.int64)


def check_policy(priced: PricedStages, policy: WeightPolicy) -> None:
    """Refuse what an asynchronous policy cannot do with these stages."""
    if policy.is_synchronous:
        return
    if len({stage.micro_batch_size for stage in priced.stages}) > 1:
        raise InvalidOption(
            f"Policy {policy.name} wants micro-batches of one size at every stage.",
            remedy="Choose one micro-batch size, or policy flush.",
        )
    count = priced.num_micro_batches(0)
    if policy.accumulate < 1 or count % policy.accumulate:
        raise InvalidOption(
            f"An update every {policy.accumulate} micro-batches does not divide the {count} of"
            " the batch.",
            remedy=f"Choose accumulate among the divisors of {count}.",
        )
    if len(policy.warmups) != len(priced.stages):
        raise InvalidOption(
            f"The policy has {len(policy.warmups)} warm-ups for {len(priced.stages)} stages.",
            remedy="Give one warm-up for every stage.",
        )
    most = max(policy.warmups)
    if policy.name == "2bw" and policy.accumulate < most:
        legal = next((m for m in range(most, count + 1) if count % m == 0), None)
        raise InvalidOption(
            f"2bw with warm-ups up to {most} must accumulate at least as many micro-batches per"
            f" update, not {policy.accumulate}.",
            remedy=f"Set accumulate to {legal} or more."
            if legal is not None
            else f"Use a batch of at least {most} micro-batches.",
        )
