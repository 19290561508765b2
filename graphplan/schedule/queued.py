"""Evaluation of an order with contention: messages queue on the channels that they share.

Between the longest path (evaluate.py), where no message waits for another, and the simulator, which
runs programs device by device: here a group of devices that run the same stages is one machine.
A message is ready when the task that makes it ends, its receiver is taken to wait for it, and
channels serve in that order. A search can afford it for every candidate.

Of replicas whose messages share a channel, the machine stands for the one that comes last. Their
first messages wait for each other, m m m m; from then on the replicas work apart by as much, the
others' messages have passed when the last one's are ready, and it only waits for its own m.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from graphplan.errors import InvalidOption
from graphplan.nouns.prices import PricedStages, TransferPrice
from graphplan.nouns.schedule import Schedule
from graphplan.schedule.evaluate import close_orders, durations_of
from graphplan.schedule.shop import F, G, Orders, Shop, make_shop, number_tasks

Parcel = tuple[int, float, float, float]
"""Channel, seconds of all messages on it, those of the device that gets most, latency."""
Sends = list[tuple[int, tuple[Parcel, ...]]]
"""Receiving stages of a task's messages."""


def has_contention(priced: PricedStages) -> bool:
    """Whether a channel has several messages to carry, for a micro-batch."""
    seen: set[str] = set()
    for transfer in priced.transfers:
        for message in transfer.messages:
            if message.channel in seen:
                return True
            seen.add(message.channel)
    return False


def measure_queued(priced: PricedStages, schedule: Schedule) -> float:
    """Step seconds of a schedule with the updates of flush."""
    shop = make_shop(priced)
    orders = close_orders(shop, number_tasks(shop, schedule))
    ends = run_queued(shop, orders, durations_of(shop, schedule))
    if ends is None:
        raise InvalidOption(
            f"Schedule {schedule.name!r} deadlocks: its tasks wait for one another in a circle.",
            remedy="Use a schedule that graphplan built, for example 1f1b.",
        )
    return max(ends, default=0.0)


def run_queued(shop: Shop, orders: Orders, durations: Sequence[float]) -> list[float] | None:
    """End of every task by its number, -1 for tasks that are not in the orders; None if the orders
    deadlock."""
    return _QueuedRun(shop, orders, durations).run()


class _QueuedRun:
    """Machines and channels in the order of time; only ends of tasks are events."""

    def __init__(self, shop: Shop, orders: Orders, durations: Sequence[float]) -> None:
        self.shop, self.orders, self.durations = shop, orders, durations
        self.num_stages = len(shop.count_by_stage)
        self.sends_by_stage = _list_sends(shop.priced)
        self.frees: list[float] = [0.0] * self._count_channels()
        self.ends = [-1.0] * shop.num_tasks
        self.arrivals: dict[int, float] = {}
        """By task and receiving stage, as one number."""
        self.positions = [0] * len(orders)
        self.waiting: dict[int, list[int]] = {}
        self.events: list[tuple[float, int, int]] = []

    def run(self) -> list[float] | None:
        for machine in range(len(self.orders)):
            self._start_next(machine, 0.0)
        num_run = 0
        while self.events:
            now, task, machine = heapq.heappop(self.events)
            num_run += 1
            self.ends[task] = now
            self._send(task, now)
            for other in self.waiting.pop(task, ()):
                self._start_next(other, self._free_at(other))
            self._start_next(machine, now)
        return self.ends if num_run == sum(map(len, self.orders)) else None

    def _free_at(self, machine: int) -> float:
        position = self.positions[machine]
        return self.ends[self.orders[machine][position - 1]] if position else 0.0

    def _start_next(self, machine: int, free: float) -> None:
        """Start the next task of a free machine, or wait for what it needs."""
        order, position = self.orders[machine], self.positions[machine]
        if position == len(order):
            return
        task, start, shop = order[position], free, self.shop
        stage = shop.stage_by_task[task]
        for needed, _ in shop.arcs_by_task[task]:
            if self.ends[needed] < 0:
                self.waiting.setdefault(needed, []).append(machine)
                return
            arrival = self.arrivals.get(needed * self.num_stages + stage, self.ends[needed])
            start = max(start, arrival)
        self.positions[machine] = position + 1
        heapq.heappush(self.events, (start + self.durations[task], task, machine))

    def _send(self, task: int, now: float) -> None:
        """Queue the messages of a task that has ended."""
        stage = self.shop.stage_by_task[task]
        sends = self.sends_by_stage[stage]
        if not sends[F] and not sends[G]:
            return
        row = self.shop.row_by_task[task]
        if row > G:
            return
        first = row == F and self.shop.first_by_stage[stage] == task
        frees = self.frees
        for dst, parcels in sends[row]:
            last = now
            for channel, seconds, own_s, latency in parcels:
                ready = now if first else now - (seconds - own_s)
                end = max(ready, frees[channel]) + seconds
                frees[channel] = end
                last = max(last, end + latency)
            self.arrivals[task * self.num_stages + dst] = last

    def _count_channels(self) -> int:
        channels = {
            channel
            for rows in self.sends_by_stage
            for sends in rows
            for _, parcels in sends
            for channel, *_ in parcels
        }
        return len(channels)


def _list_sends(priced: PricedStages) -> list[tuple[Sends, Sends]]:
    """What the forward and the backward of every stage send."""
    number_by_channel: dict[str, int] = {}
    found: list[tuple[Sends, Sends]] = [([], []) for _ in priced.stages]
    for transfer in priced.transfers:
        parcels = _pack_messages(transfer, number_by_channel)
        if parcels:
            found[transfer.src][G if transfer.backward else F].append((transfer.dst, parcels))
    return found


def _pack_messages(
    transfer: TransferPrice, number_by_channel: dict[str, int]
) -> tuple[Parcel, ...]:
    """One parcel for each channel of a transfer."""
    seconds_by_ends: dict[tuple[int, int], float] = {}
    latency_by_channel: dict[int, float] = {}
    for message in transfer.messages:
        channel = number_by_channel.setdefault(message.channel, len(number_by_channel))
        ends = (channel, message.dst)
        seconds_by_ends[ends] = seconds_by_ends.get(ends, 0.0) + message.seconds
        latency = max(latency_by_channel.get(channel, 0.0), message.latency_s)
        latency_by_channel[channel] = latency
    parcels = []
    for channel, latency in latency_by_channel.items():
        shares = [seconds for (used, _), seconds in seconds_by_ends.items() if used == channel]
        parcels.append((channel, sum(shares), max(shares), latency))
    return tuple(parcels)
