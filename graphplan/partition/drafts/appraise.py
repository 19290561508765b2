"""Appraiser: what a draft is worth at a glance, for local searches that look at very many.

Parts are priced by the cost model. What depends on other parts is added here as `price_stages` adds
it: reductions of weights that several parts hold, and what messages take from the tasks at both
ends. Messages are those of a whole transfer, alone on its channels. The estimate itself is compiled
(estimate.py); here its arrays are made, from prices and ways that are remembered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.model import CostModel
from graphplan.cost.rows import share_rows
from graphplan.nouns.prices import StagePrice
from graphplan.nouns.problem import Floats, Ints
from graphplan.partition.assemble import Part
from graphplan.partition.drafts.estimate import (
    BACKWARD,
    CLOSING,
    FORWARD,
    RETURNING,
    estimate_step,
    sort_parts,
    sum_messages,
)

Devices = tuple[int, ...]


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


@dataclasses.dataclass(frozen=True)
class Way:
    """Messages from one group of devices to another."""

    latency_s: float
    seconds_per_byte: float
    """On the busiest channel."""
    channels: Ints
    """Numbers of the channels that are used."""
    channel_s_per_byte: Floats
    """Seconds for each byte of a micro-batch on each of them."""
    taken: tuple[frozenset[tuple[float, float]], frozenset[tuple[float, float]]]
    """What messages take from the tasks of senders and of receivers: for every device, seconds and
    seconds for each byte; empty where messages take nothing."""

    def time_ends(self, num_bytes: float) -> tuple[float, float]:
        """Seconds that the messages take from the sender and from the receiver."""
        sender, receiver = (
            max((start + each * num_bytes for start, each in ends), default=0.0)
            for ends in self.taken
        )
        return sender, receiver


class Appraiser:
    """Appraises drafts of one problem."""

    def __init__(self, cost: CostModel, *, relaxed: bool = False) -> None:
        self.cost, self.problem, self.relaxed = cost, cost.problem, relaxed
        flows = [flow for flow in self.problem.flows if flow.owner is not None]
        num_readers = [len(flow.readers) for flow in flows]
        self._flows = (
            numpy.array([flow.owner for flow in flows], dtype=numpy.int64),
            numpy.concatenate([[0], numpy.cumsum(num_readers)]).astype(numpy.int64),
            numpy.array([r for flow in flows for r in flow.readers], dtype=numpy.int64),
            numpy.array([flow.needs_grad for flow in flows], dtype=numpy.bool_),
        )
        num_sizes = len(self.problem.sample_sizes)
        sizes = numpy.array([flow.bytes_by_size for flow in flows], dtype=numpy.int64)
        self._flow_bytes = sizes.reshape(len(flows), num_sizes)
        links = self.problem.cluster.links
        self._has_hosts = any(link.host_s or link.host_s_per_byte for link in links)
        self._rows: dict[Part, tuple[Ints, tuple[float, ...], tuple[float, ...], bool]] = {}
        self._ways: dict[tuple[Devices, Devices], Way] = {}
        self._channels: dict[str, int] = {}
        self._room: dict[Devices, int] = {}

    def appraise(self, parts: Sequence[Part]) -> Appraisal | None:
        """The estimate for a draft, None when its parts wait for each other."""
        problem, rows = self.problem, [self._row(part) for part in parts]
        part_of = numpy.zeros(problem.num_nodes, dtype=numpy.int64)
        for p, row in enumerate(rows):
            part_of[row[0]] = p
        size = numpy.array([part.micro_batch_size for part in parts], dtype=numpy.int64)
        size_of = numpy.array([problem.size_index[part.micro_batch_size] for part in parts])
        edges, amounts = sum_messages(part_of, size_of, self._flows, self._flow_bytes)
        order = sort_parts(len(parts), edges)
        if len(order) < len(parts):
            return None
        number: dict[Devices, int] = {}
        group = numpy.array([number.setdefault(part.devices, len(number)) for part in parts])
        seconds = numpy.array([row[1] for row in rows]).T.copy()
        self._add_others(parts, seconds, edges, amounts)
        ways, crossing = self._list_ways(parts, edges), numpy.maximum(amounts, 0.0).T.ravel()
        batch = problem.training.batch_size
        step_s, period_s, busiest, worst, sources, missing = estimate_step(
            batch,
            self.relaxed,
            order,
            (size, group, numpy.array([row[3] for row in rows])),
            seconds,
            numpy.array([row[2] for row in rows]).T.copy(),
            numpy.array([self.room(devices) for devices in number], dtype=float),
            (edges, amounts[1] >= 0.0, _time_messages(ways, crossing)),
        )
        channel_s = _measure_channels(ways, crossing / size[edges.T.ravel()])
        step_s += batch * max(0.0, channel_s - period_s)
        critical = [worst]
        while (source := int(sources[critical[-1]])) >= 0:
            critical.append(source)
        return Appraisal(
            step_s=step_s,
            excess_bytes=int(missing[missing > 0].sum()),
            period_s=period_s,
            busiest=tuple(numpy.flatnonzero(group == busiest).tolist()),
            critical=tuple(critical[::-1]),
            crowded=tuple(numpy.flatnonzero(missing[group] > 0).tolist()),
        )

    def _row(self, part: Part) -> tuple[Ints, tuple[float, ...], tuple[float, ...], bool]:
        """Nodes, seconds and bytes of a part by itself, and whether it trains."""
        if part not in self._rows:
            price = self.price(part)
            returning_s = price.input_grad_s if self.relaxed else price.backward_s
            weights_s = price.weight_grad_s if self.relaxed else 0.0
            trains = price.needs_backward
            closing_s = price.closing_s
            seconds = (price.forward_s, price.backward_s, returning_s, weights_s, closing_s)
            memory = (price.fixed_bytes, price.saved_bytes, price.workspace_bytes)
            nodes = numpy.array(part.nodes, dtype=numpy.int64)
            self._rows[part] = (nodes, seconds, tuple(map(float, memory)), trains)
        return self._rows[part]

    def price(self, part: Part) -> StagePrice:
        """Seconds and bytes of a part by itself."""
        return self.cost.price_nodes(
            part.nodes, part.devices, part.micro_batch_size, recompute=part.recompute
        )

    def way(self, src: Devices, dst: Devices) -> Way:
        """The channels between two groups of devices."""
        if (src, dst) not in self._ways:
            self._ways[src, dst] = self._measure_way(src, dst)
        return self._ways[src, dst]

    def room(self, devices: Devices) -> int:
        """Memory of the smallest of the devices."""
        if devices not in self._room:
            all_devices = self.problem.cluster.devices
            self._room[devices] = min(all_devices[device].memory_bytes for device in devices)
        return self._room[devices]

    def _add_others(
        self, parts: Sequence[Part], seconds: Floats, edges: Ints, amounts: Floats
    ) -> None:
        """Add what depends on other parts to the seconds of each."""
        for tie in self.problem.ties:
            inside = set(tie.readers)
            holders = [p for p, part in enumerate(parts) if not inside.isdisjoint(part.nodes)]
            devices = sorted({device for p in holders for device in parts[p].devices})
            reduce_s = self.cost.reductions.time_all(devices, tie.trained_elements)
            for p in holders:
                seconds[CLOSING, p] += reduce_s * self._row(parts[p])[3]
        if not self._has_hosts:
            return
        for (src, dst), (ahead, back) in zip(edges.T.tolist(), amounts.T.tolist(), strict=True):
            self._add_ends(parts, seconds, (src, dst), ahead, (FORWARD,))
            if back >= 0:
                self._add_ends(parts, seconds, (dst, src), back, (BACKWARD, RETURNING))

    def _add_ends(
        self,
        parts: Sequence[Part],
        seconds: Floats,
        ends: tuple[int, int],
        num_bytes: float,
        rows: tuple[int, ...],
    ) -> None:
        """Add what messages take from the tasks of their sender and of their receiver."""
        src, dst = ends
        sender_s, receiver_s = self.way(parts[src].devices, parts[dst].devices).time_ends(num_bytes)
        # A larger micro-batch takes several of the sender's messages.
        tasks = parts[dst].micro_batch_size / parts[src].micro_batch_size
        for row in rows:
            seconds[row, src] += sender_s
            seconds[row, dst] += tasks * receiver_s

    def _list_ways(self, parts: Sequence[Part], edges: Ints) -> list[Way]:
        """The ways of every edge, there and back, one after the other."""
        devices = [part.devices for part in parts]
        return [
            self.way(devices[a], devices[b])
            for src, dst in edges.T.tolist()
            for a, b in ((src, dst), (dst, src))
        ]

    def _measure_way(self, src: Devices, dst: Devices) -> Way:
        cluster = self.problem.cluster
        busy: dict[str, float] = {}
        ends: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
        latency_s = 0.0
        for share in share_rows(len(src), len(dst)) if src != dst else ():
            a, b = src[share.src], dst[share.dst]
            if a == b:
                continue
            link, channel = cluster.link_between(a, b), cluster.channel_between(a, b)
            rows = share.rows / share.all_rows
            busy[channel] = busy.get(channel, 0.0) + rows / link.bandwidth_bytes_per_s
            latency_s = max(latency_s, link.latency_s)
            for device, by_device in zip((a, b), ends, strict=True):
                taken = by_device.setdefault(device, [0.0, 0.0])
                taken[0] += link.host_s
                taken[1] += rows * link.host_s_per_byte
        taken_by = [frozenset((each[0], each[1]) for each in by.values()) for by in ends]
        longest = max(busy.values(), default=0.0)
        numbers = [self._channels.setdefault(channel, len(self._channels)) for channel in busy]
        channels, seconds = (
            numpy.array(numbers, dtype=numpy.int64),
            numpy.array(list(busy.values())),
        )
        return Way(latency_s, longest, channels, seconds, (taken_by[0], taken_by[1]))


def _time_messages(ways: Sequence[Way], num_bytes: Floats) -> Floats:
    """[2, edge]: seconds until the last message has arrived, there and back."""
    latency_s = numpy.array([way.latency_s for way in ways])
    found = latency_s + num_bytes * numpy.array([way.seconds_per_byte for way in ways])
    return numpy.ascontiguousarray(found.reshape(-1, 2).T)


def _measure_channels(ways: Sequence[Way], num_bytes: Floats) -> float:
    """Seconds of one sample on the busiest channel, for the bytes of a sample on every way."""
    if not ways:
        return 0.0
    counts = [len(way.channels) for way in ways]
    seconds = numpy.concatenate([way.channel_s_per_byte for way in ways])
    channels = numpy.concatenate([way.channels for way in ways])
    weights = numpy.repeat(num_bytes, counts) * seconds
    return float(numpy.bincount(channels, weights).max(initial=0.0))
