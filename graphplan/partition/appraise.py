"""Appraisal: a quick estimate of a draft's step time, to rank drafts before they are evaluated.

A draft is a set of parts. With M micro-batches of which K may be in flight, a part that waits R
seconds from its first forward to the gradient is busy or idle for M (f + b) + idle seconds, idle =
max(0, R - (K-1) f) + max(0, R - (K-1) b), only the larger of the two if all M are in flight. The
last tasks of a part follow those of its neighbours. Where messages are slow, a micro-batch may also
take (f + R + b) / K. Parts that share devices add up their times and use each other's idle time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.model import CostModel
from graphplan.cost.rows import share_rows
from graphplan.partition.assemble import Part
from graphplan.partition.inflight import count_in_flight

Devices = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PartPrice:
    """Seconds of one micro-batch and bytes on one replica."""

    forward_s: float
    backward_s: float
    closing_s: float
    fixed_bytes: int
    saved_bytes: int
    workspace_bytes: int
    trains: bool

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclasses.dataclass(frozen=True)
class _Way:
    """Messages from one group of devices to another."""

    latency_s: float
    seconds_per_byte: float
    """On the busiest channel."""
    channels: tuple[tuple[str, float], ...]
    """Seconds for each byte of a micro-batch on every channel."""


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


class Appraiser:
    """Appraises drafts of one problem."""

    def __init__(self, cost: CostModel) -> None:
        self.cost, self.problem = cost, cost.problem
        self._flows = [flow for flow in self.problem.flows if flow.owner is not None]
        ends = [(i, flow.owner, r) for i, flow in enumerate(self._flows) for r in flow.readers]
        self._ends = numpy.array(ends, dtype=numpy.int64).reshape(-1, 3).T
        self._times: dict[tuple[tuple[int, ...], tuple[int, ...], int, int], tuple[float, ...]] = {}
        self._memory: dict[tuple[tuple[int, ...], int, bool], tuple[int, int, int]] = {}
        self._prices: dict[Part, PartPrice] = {}
        self._links: dict[tuple[Devices, Devices], _Way] = {}
        self._room: dict[Devices, int] = {}

    def appraise(self, parts: Sequence[Part]) -> Appraisal | None:
        """The estimate for a draft, None when its parts wait for each other."""
        forward, backward = self._sum_messages(parts)
        after: list[list[int]] = [[] for _ in parts]
        for src, dst in forward:
            after[src].append(dst)
        order = _sort_parts(len(parts), after)
        if order is None:
            return None
        return _Estimate(self, parts, forward, backward, after, order).make()

    def price(self, part: Part) -> PartPrice:
        """Seconds and bytes of one part."""
        if part not in self._prices:
            self._prices[part] = self._make_price(part)
        return self._prices[part]

    def delay(self, src: Devices, dst: Devices, num_bytes: float) -> float:
        """Seconds from the end of a task to the arrival of all its messages."""
        if src == dst:
            return 0.0
        way = self.way(src, dst)
        return way.latency_s + num_bytes * way.seconds_per_byte

    def way(self, src: Devices, dst: Devices) -> _Way:
        """The channels between two groups of devices."""
        if (src, dst) not in self._links:
            self._links[src, dst] = self._measure_way(src, dst)
        return self._links[src, dst]

    def room(self, devices: Devices) -> int:
        """Memory of the smallest of the devices."""
        if devices not in self._room:
            all_devices = self.problem.cluster.devices
            self._room[devices] = min(all_devices[device].memory_bytes for device in devices)
        return self._room[devices]

    def _make_price(self, part: Part) -> PartPrice:
        problem, nodes = self.problem, part.nodes
        types = tuple(sorted({problem.type_index_by_device[device] for device in part.devices}))
        samples = self.cost.samples_per_replica(part.micro_batch_size, len(part.devices))
        key = (nodes, types, part.micro_batch_size, len(part.devices))
        if key not in self._times:
            trained = self.cost.trained_elements(nodes)
            kinds = [problem.cluster.types[kind] for kind in types]
            self._times[key] = (
                *self.cost.stage_times(nodes, part.devices, part.micro_batch_size),
                max(self.cost.update_time(kind, trained) for kind in kinds),
                trained * problem.element_bytes,
                bool(problem.needs_backward[list(nodes)].any()),
            )
        forward_s, inputs_s, weights_s, update_s, trained_bytes, trains = self._times[key]
        if (nodes, samples, part.recompute) not in self._memory:
            memory = self.cost.stage_memory(nodes, samples, recompute=part.recompute)
            sizes = (memory.fixed, memory.saved, memory.workspace)
            self._memory[nodes, samples, part.recompute] = sizes
        fixed, saved, workspace = self._memory[nodes, samples, part.recompute]
        reduce_s = allreduce_time(problem.cluster, part.devices, int(trained_bytes))
        return PartPrice(
            forward_s=forward_s,
            backward_s=inputs_s + weights_s + part.recompute * forward_s if trains else 0.0,
            closing_s=update_s + reduce_s if trains else 0.0,
            fixed_bytes=fixed,
            saved_bytes=saved if trains else 0,
            workspace_bytes=workspace,
            trains=bool(trains),
        )

    def _sum_messages(
        self, parts: Sequence[Part]
    ) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
        """Bytes of one micro-batch of the sender, forward and backward, by (sender, receiver)."""
        part_of = numpy.zeros(self.problem.num_nodes, dtype=numpy.int64)
        for p, part in enumerate(parts):
            part_of[list(part.nodes)] = p
        size_of = [self.problem.size_index[part.micro_batch_size] for part in parts]
        flows, owners, readers = self._ends
        sources, targets = part_of[owners], part_of[readers]
        crossing = (sources != targets).nonzero()[0]
        forward: dict[tuple[int, int], float] = {}
        backward: dict[tuple[int, int], float] = {}
        # A tensor goes to a part once, however many of its nodes read it.
        for i, src, dst in dict.fromkeys(
            zip(
                flows[crossing].tolist(),
                sources[crossing].tolist(),
                targets[crossing].tolist(),
                strict=True,
            )
        ):
            flow = self._flows[i]
            sent = flow.bytes_by_size[size_of[src]]
            forward[src, dst] = forward.get((src, dst), 0.0) + sent
            if flow.needs_grad:
                returned = flow.bytes_by_size[size_of[dst]]
                backward[dst, src] = backward.get((dst, src), 0.0) + returned
        return forward, backward

    def _measure_way(self, src: Devices, dst: Devices) -> _Way:
        cluster = self.problem.cluster
        busy: dict[str, float] = {}
        latency_s = 0.0
        for share in share_rows(len(src), len(dst)):
            a, b = src[share.src], dst[share.dst]
            if a == b:
                continue
            link, channel = cluster.link_between(a, b), cluster.channel_between(a, b)
            seconds = share.rows / share.all_rows / link.bandwidth_bytes_per_s
            busy[channel] = busy.get(channel, 0.0) + seconds
            latency_s = max(latency_s, link.latency_s)
        return _Way(latency_s, max(busy.values(), default=0.0), tuple(busy.items()))


def _sort_parts(count: int, after: Sequence[Sequence[int]]) -> list[int] | None:
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


class _Estimate:
    """The parts of one estimate."""

    def __init__(
        self,
        appraiser: Appraiser,
        parts: Sequence[Part],
        forward: dict[tuple[int, int], float],
        backward: dict[tuple[int, int], float],
        after: list[list[int]],
        order: list[int],
    ) -> None:
        self.appraiser, self.parts, self.order = appraiser, parts, order
        self.prices = [appraiser.price(part) for part in parts]
        self.after = after
        self.before: list[list[int]] = [[] for _ in parts]
        for src, dst in forward:
            self.before[dst].append(src)
        self.delays = {
            (src, dst): appraiser.delay(parts[src].devices, parts[dst].devices, num_bytes)
            for messages in (forward, backward)
            for (src, dst), num_bytes in messages.items()
        }
        self.forward, self.backward = forward, backward

    def make(self) -> Appraisal:
        """The whole estimate."""
        heads, arounds, tails = self._measure_ways()
        in_flight = self._count_in_flight()
        loads, busiest = self._measure_loads()
        excess, crowded = self._measure_memory(in_flight)
        lasts, sources = self._find_last_forwards(heads, arounds, in_flight, loads)
        step_s, worst = 0.0, 0
        ends = [0.0] * len(self.parts)
        for p in reversed(self.order):
            price = self.prices[p]
            ends[p] = lasts[p] + price.seconds + arounds[p]
            for dst in self.after[p]:
                if (dst, p) in self.backward:
                    end = ends[dst] + self.delays[dst, p] + price.backward_s
                    ends[p] = max(ends[p], end)
            end = ends[p] + max(tails[p], price.closing_s)
            if end > step_s:
                step_s, worst = end, p
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
            excess_bytes=excess,
            period_s=loads[busiest],
            busiest=hosted,
            critical=tuple(critical[::-1]),
            crowded=crowded,
        )

    def _measure_ways(self) -> tuple[list[float], list[float], list[float]]:
        """Seconds before a part's first forward, from its end to the backward, and after that."""
        count, prices, delays = len(self.parts), self.prices, self.delays
        sizes = [part.micro_batch_size for part in self.parts]
        heads, arounds, tails = [0.0] * count, [0.0] * count, [0.0] * count
        for p in self.order:
            for src in self.before[p]:
                # A larger micro-batch waits for several of the sender's.
                tasks = max(1.0, sizes[p] / sizes[src])
                head = heads[src] + tasks * prices[src].forward_s + delays[src, p]
                heads[p] = max(heads[p], head)
                if (p, src) in self.backward:
                    tail = tails[src] + prices[src].backward_s + delays[p, src]
                    tails[p] = max(tails[p], tail)
        for p in reversed(self.order):
            for dst in self.after[p]:
                if (dst, p) in self.backward:
                    tasks = max(1.0, sizes[p] / sizes[dst])
                    there = delays[p, dst] + tasks * prices[dst].forward_s + arounds[dst]
                    back = tasks * prices[dst].backward_s + delays[dst, p]
                    arounds[p] = max(arounds[p], there + back)
        return heads, arounds, tails

    def _find_last_forwards(
        self,
        heads: Sequence[float],
        arounds: Sequence[float],
        in_flight: Sequence[int],
        loads: dict[Devices, float],
    ) -> tuple[list[float], list[int | None]]:
        """Start of the last forward of every part, and the part that it waits for, if any."""
        batch = self.appraiser.problem.training.batch_size
        lasts = [0.0] * len(self.parts)
        sources: list[int | None] = [None] * len(self.parts)
        for p in self.order:
            part, price, around = self.parts[p], self.prices[p], arounds[p]
            count = batch // part.micro_batch_size
            ahead = min(count, in_flight[p]) - 1
            idles = (
                max(0.0, around - ahead * price.forward_s),
                max(0.0, around - ahead * price.backward_s),
            )
            # Other parts on the same devices may run while this one waits.
            alone = count * price.seconds + (sum(idles) if count > ahead + 1 else max(idles))
            span = max(batch * loads[part.devices], alone)
            steady = span - around - price.seconds
            lasts[p] = heads[p] + max((count - 1) * price.forward_s, steady)
            for src in self.before[p]:
                last = lasts[src] + self.prices[src].forward_s + self.delays[src, p]
                if last >= lasts[p]:
                    lasts[p], sources[p] = last, src
        return lasts, sources

    def _wait_for_messages(
        self, arounds: Sequence[float], in_flight: Sequence[int], load: float
    ) -> float:
        """Seconds by which slow messages stretch the steady state."""
        batch = self.appraiser.problem.training.batch_size
        longest = 0.0
        for p, part in enumerate(self.parts):
            ahead = in_flight[p] * part.micro_batch_size
            if self.prices[p].trains and batch > ahead:
                period = (self.prices[p].seconds + arounds[p]) / ahead
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
        successors = [
            [rank[dst] for dst in self.after[p] if (dst, p) in self.backward] for p in self.order
        ]
        samples = count_in_flight(sizes, successors)
        return [
            min(batch, samples[rank[p]]) // self.parts[p].micro_batch_size
            for p in range(len(self.parts))
        ]

    def _measure_loads(self) -> tuple[dict[Devices, float], Devices]:
        """Seconds of one sample on every group of devices, and the busiest group."""
        loads: dict[Devices, float] = {}
        for part, price in zip(self.parts, self.prices, strict=True):
            seconds = price.seconds / part.micro_batch_size
            loads[part.devices] = loads.get(part.devices, 0.0) + seconds
        return loads, max(loads, key=lambda devices: loads[devices])

    def _measure_memory(self, in_flight: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Bytes that are missing in all, and the parts on the devices where they are missing."""
        fixed: dict[Devices, int] = {}
        workspace: dict[Devices, int] = {}
        for p, part in enumerate(self.parts):
            price = self.prices[p]
            held = price.fixed_bytes + in_flight[p] * price.saved_bytes
            fixed[part.devices] = fixed.get(part.devices, 0) + held
            workspace[part.devices] = max(workspace.get(part.devices, 0), price.workspace_bytes)
        missing = {
            devices: num_bytes + workspace[devices] - self.appraiser.room(devices)
            for devices, num_bytes in fixed.items()
        }
        crowded = {devices for devices, num_bytes in missing.items() if num_bytes > 0}
        excess = sum(missing[devices] for devices in crowded)
        return excess, tuple(p for p, part in enumerate(self.parts) if part.devices in crowded)
