"""Appraisal: a quick estimate of a draft's step time, to rank drafts before they are evaluated.

A draft is a set of parts. With M micro-batches of which K may be in flight, a part that waits R
seconds from its first forward to the gradient is busy or idle for M (f + b) + idle seconds, idle =
max(0, R - (K-1) f) + max(0, R - (K-1) b), only the larger of the two if all M are in flight. The
last tasks of a part follow those of its neighbours. Where messages are slow, a micro-batch may also
take (f + R + b) / K. Parts that share devices add up their times and use each other's idle time.

K is that of 1F1B. A *relaxed* appraisal is that of schedules that are searched for: K is what
memory allows, and gradients go back at once, weight gradients waiting for idle time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphplan.cost.inflight import count_in_flight
from graphplan.nouns.prices import StagePrice
from graphplan.partition.assemble import Part

if TYPE_CHECKING:
    from graphplan.partition.drafts.appraise import Appraiser

Devices = tuple[int, ...]
Parts = tuple[int, ...]
"""Positions of parts."""


@dataclasses.dataclass(frozen=True)
class PartTimes:
    """Seconds of one micro-batch of a part, among the other parts."""

    forward_s: float
    backward_s: float
    returning_s: float
    """What a gradient waits for on its way back."""
    weights_s: float
    """What is left of the backward then."""
    closing_s: float

    @property
    def busy_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclasses.dataclass(frozen=True)
class Messages:
    """Bytes of one micro-batch of the sender, by (sender, receiver)."""

    forward: dict[tuple[int, int], float]
    backward: dict[tuple[int, int], float]


@dataclasses.dataclass(frozen=True)
class Appraisal:
    """What a draft is worth; parts are named by their positions."""

    step_s: float
    excess_bytes: int
    """What is missing on the devices that are too small, 0 when everything fits."""
    period_s: float
    """Of one sample."""
    busiest: tuple[int, ...]
    """Parts on the busiest devices."""
    critical: tuple[int, ...]
    """Parts on the longest way, from the source on."""
    crowded: tuple[int, ...]
    """Parts on devices that are too small."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller is better: what fits first."""
        if self.excess_bytes:
            return True, float(self.excess_bytes)
        return False, self.step_s


class Estimate:
    """The parts of one estimate."""

    def __init__(
        self,
        appraiser: Appraiser,
        parts: Sequence[Part],
        prices: Sequence[StagePrice],
        times: Sequence[PartTimes],
        messages: Messages,
        after: list[list[int]],
        order: list[int],
    ) -> None:
        self.appraiser, self.parts, self.order = appraiser, parts, order
        self.prices, self.times = prices, times
        self.after = after
        self.before: list[list[int]] = [[] for _ in parts]
        self.forward, self.backward = messages.forward, messages.backward
        for src, dst in self.forward:
            self.before[dst].append(src)
        self.delays = {
            (src, dst): appraiser.way(parts[src].devices, parts[dst].devices).time_message(amount)
            for sums in (self.forward, self.backward)
            for (src, dst), amount in sums.items()
        }

    def make(self) -> Appraisal:
        """The whole estimate."""
        heads, arounds, tails = self._measure_ways()
        in_flight = self._count_in_flight()
        loads, busiest = self._measure_loads()
        missing, crowded = self._measure_memory(in_flight)
        if self.appraiser.relaxed:
            in_flight = self._fill_memory(in_flight, missing)
        spans = self._measure_spans(arounds, in_flight, loads)
        lasts, sources = self._find_last_forwards(heads, arounds, in_flight, spans)
        step_s, worst = self._find_end(heads, arounds, tails, spans, lasts)
        for busy_s, p in self._close_groups(heads, loads):
            if busy_s > step_s:
                step_s, worst = busy_s, p
        slow_s = self._wait_for_messages(arounds, in_flight, loads[busiest])
        channel_s = self._measure_channels()
        batch = self.appraiser.problem.training.batch_size
        step_s += slow_s + batch * max(0.0, channel_s - loads[busiest])
        critical = [worst]
        while (source := sources[critical[-1]]) is not None:
            critical.append(source)
        hosted = tuple(p for p, part in enumerate(self.parts) if part.devices == busiest)
        return Appraisal(
            step_s=step_s,
            excess_bytes=sum(max(0, num_bytes) for num_bytes in missing.values()),
            period_s=loads[busiest],
            busiest=hosted,
            critical=tuple(critical[::-1]),
            crowded=crowded,
        )

    def _measure_ways(self) -> tuple[list[float], list[float], list[float]]:
        """Seconds before a part's first forward, from its end to the backward, and after that."""
        count, times, delays = len(self.parts), self.times, self.delays
        sizes = [part.micro_batch_size for part in self.parts]
        heads, arounds, tails = [0.0] * count, [0.0] * count, [0.0] * count
        for p in self.order:
            for src in self.before[p]:
                # A larger micro-batch waits for several of the sender's.
                tasks = max(1.0, sizes[p] / sizes[src])
                head = heads[src] + tasks * times[src].forward_s + delays[src, p]
                heads[p] = max(heads[p], head)
                if (p, src) in self.backward:
                    tail = tails[src] + times[src].returning_s + delays[p, src]
                    tails[p] = max(tails[p], tail)
        for p in reversed(self.order):
            for dst in self.after[p]:
                if (dst, p) in self.backward:
                    tasks = max(1.0, sizes[p] / sizes[dst])
                    there = delays[p, dst] + tasks * times[dst].forward_s + arounds[dst]
                    back = tasks * times[dst].returning_s + delays[dst, p]
                    arounds[p] = max(arounds[p], there + back)
        return heads, arounds, tails

    def _measure_spans(
        self, arounds: Sequence[float], in_flight: Sequence[int], loads: dict[Devices, float]
    ) -> list[float]:
        """Seconds from the first forward of every part to its last backward, idle ones included."""
        batch = self.appraiser.problem.training.batch_size
        spans = []
        for p, part in enumerate(self.parts):
            own, around = self.times[p], arounds[p]
            count = batch // part.micro_batch_size
            ahead = min(count, in_flight[p]) - 1
            idles = (
                max(0.0, around - ahead * own.forward_s),
                max(0.0, around - ahead * own.backward_s),
            )
            # Other parts on the same devices may run while this one waits.
            alone = count * own.busy_s + (sum(idles) if count > ahead + 1 else max(idles))
            spans.append(max(batch * loads[part.devices], alone))
        return spans

    def _find_last_forwards(
        self,
        heads: Sequence[float],
        arounds: Sequence[float],
        in_flight: Sequence[int],
        spans: Sequence[float],
    ) -> tuple[list[float], list[int | None]]:
        """Start of the last forward of every part, and the part that it waits for, if any."""
        batch = self.appraiser.problem.training.batch_size
        lasts = [0.0] * len(self.parts)
        sources: list[int | None] = [None] * len(self.parts)
        for p in self.order:
            own, count = self.times[p], batch // self.parts[p].micro_batch_size
            if self.appraiser.relaxed:
                # Forwards go ahead until memory is full.
                returned = max(0, count - in_flight[p])
                steady = (count - 1) * own.forward_s + returned * own.returning_s
            else:
                steady = spans[p] - arounds[p] - own.busy_s
            lasts[p] = heads[p] + max((count - 1) * own.forward_s, steady)
            for src in self.before[p]:
                last = lasts[src] + self.times[src].forward_s + self.delays[src, p]
                if last >= lasts[p]:
                    lasts[p], sources[p] = last, src
        return lasts, sources

    def _find_end(
        self,
        heads: Sequence[float],
        arounds: Sequence[float],
        tails: Sequence[float],
        spans: Sequence[float],
        lasts: Sequence[float],
    ) -> tuple[float, int]:
        """End of the step, and the part that ends last or whose gradient is waited for."""
        step_s, worst = 0.0, 0
        returns = [0.0] * len(self.parts)
        for p in reversed(self.order):
            own = self.times[p]
            returns[p] = lasts[p] + own.forward_s + arounds[p] + own.returning_s
            for dst in self.after[p]:
                if (dst, p) in self.backward:
                    end = returns[dst] + self.delays[dst, p] + own.returning_s
                    returns[p] = max(returns[p], end)
            busy_s = max(returns[p] + own.weights_s, heads[p] + spans[p])
            end = max(returns[p] + tails[p], busy_s + own.closing_s)
            if end > step_s:
                step_s, worst = end, p
        return step_s, worst

    def _wait_for_messages(
        self, arounds: Sequence[float], in_flight: Sequence[int], load: float
    ) -> float:
        """Seconds by which slow messages stretch the steady state."""
        batch = self.appraiser.problem.training.batch_size
        longest = 0.0
        for p, part in enumerate(self.parts):
            ahead = in_flight[p] * part.micro_batch_size
            if self.prices[p].needs_backward and batch > ahead:
                period = (self.times[p].busy_s + arounds[p]) / ahead
                longest = max(longest, (batch - ahead) * (period - load))
        return longest

    def _measure_channels(self) -> float:
        """Seconds of one sample on the busiest channel."""
        busy: dict[str, float] = {}
        for messages in (self.forward, self.backward):
            for (src, dst), num_bytes in messages.items():
                sender, receiver = self.parts[src], self.parts[dst]
                if sender.devices == receiver.devices:
                    continue
                amount = num_bytes / sender.micro_batch_size
                for channel, seconds in self.appraiser.way(
                    sender.devices, receiver.devices
                ).channels:
                    busy[channel] = busy.get(channel, 0.0) + amount * seconds
        return max(busy.values(), default=0.0)

    def _count_in_flight(self) -> list[int]:
        """Micro-batches in flight at every part."""
        batch = self.appraiser.problem.training.batch_size
        rank = {p: i for i, p in enumerate(self.order)}
        sizes = [self.parts[p].micro_batch_size for p in self.order]
        returning = [
            [rank[dst] for dst in self.after[p] if (dst, p) in self.backward] for p in self.order
        ]
        feeding = [[rank[dst] for dst in self.after[p]] for p in self.order]
        samples = count_in_flight(sizes, returning, feeding)
        return [
            min(batch, samples[rank[p]]) // self.parts[p].micro_batch_size
            for p in range(len(self.parts))
        ]

    def _measure_loads(self) -> tuple[dict[Devices, float], Devices]:
        """Seconds of one sample on every group of devices, and the busiest group."""
        loads: dict[Devices, float] = {}
        for part, own in zip(self.parts, self.times, strict=True):
            seconds = own.busy_s / part.micro_batch_size
            loads[part.devices] = loads.get(part.devices, 0.0) + seconds
        return loads, max(loads, key=lambda devices: loads[devices])

    def _close_groups(
        self, heads: Sequence[float], loads: dict[Devices, float]
    ) -> Iterator[tuple[float, int]]:
        """When devices that several parts share have done all work and closed all of them, and the
        part with the longest closing."""
        batch = self.appraiser.problem.training.batch_size
        hosted: dict[Devices, list[int]] = {}
        for p, part in enumerate(self.parts):
            hosted.setdefault(part.devices, []).append(p)
        for devices, group in hosted.items():
            if len(group) > 1:
                closing_s = sum(self.times[p].closing_s for p in group)
                start_s = min(heads[p] for p in group)
                longest = max(group, key=lambda p: self.times[p].closing_s)
                yield start_s + batch * loads[devices] + closing_s, longest

    def _measure_memory(self, in_flight: Sequence[int]) -> tuple[dict[Devices, int], Parts]:
        """Bytes that are missing on every group of devices (negative: left), and the parts on the
        devices that are too small."""
        held: dict[Devices, int] = {}
        workspace: dict[Devices, int] = {}
        for p, part in enumerate(self.parts):
            price = self.prices[p]
            num_bytes = price.fixed_bytes + in_flight[p] * price.saved_bytes
            held[part.devices] = held.get(part.devices, 0) + num_bytes
            workspace[part.devices] = max(workspace.get(part.devices, 0), price.workspace_bytes)
        missing = {
            devices: num_bytes + workspace[devices] - self.appraiser.room(devices)
            for devices, num_bytes in held.items()
        }
        crowded = (p for p, part in enumerate(self.parts) if missing[part.devices] > 0)
        return missing, tuple(crowded)

    def _fill_memory(self, in_flight: Sequence[int], missing: dict[Devices, int]) -> list[int]:
        """Micro-batches in flight when the parts of a group share what memory is left."""
        batch = self.appraiser.problem.training.batch_size
        saved: dict[Devices, int] = {}
        for part, price in zip(self.parts, self.prices, strict=True):
            saved[part.devices] = saved.get(part.devices, 0) + price.saved_bytes
        found = []
        for part, count in zip(self.parts, in_flight, strict=True):
            most = batch // part.micro_batch_size
            left = max(0, -missing[part.devices])
            further = left // saved[part.devices] if saved[part.devices] else most
            found.append(min(most, count + further))
        return found


def sort_parts(count: int, after: Sequence[Sequence[int]]) -> list[int] | None:
    """Parts in a topological order, None when there is none."""
    missing = [0] * count
    for each in after:
        for dst in each:
            missing[dst] += 1
    order = [p for p in range(count) if not missing[p]]
    for p in order:
        for dst in after[p]:
            missing[dst] -= 1
            if not missing[dst]:
                order.append(dst)
    return order if len(order) == count else None
