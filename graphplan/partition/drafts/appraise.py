"""Appraiser: prices of parts and the ways between them, for quick estimates of drafts.

Parts are priced by the cost model. What depends on other parts is added here as `price_stages` adds
it: reductions of weights that several parts hold, and what messages take from the tasks at both
ends. Messages are those of a whole transfer, alone on its channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.model import CostModel
from graphplan.cost.rows import share_rows
from graphplan.nouns.prices import StagePrice
from graphplan.partition.assemble import Part
from graphplan.partition.drafts.estimate import (
    Appraisal,
    Devices,
    Estimate,
    Messages,
    PartTimes,
    sort_parts,
)


@dataclasses.dataclass(frozen=True)
class Way:
    """Messages from one group of devices to another."""

    latency_s: float
    seconds_per_byte: float
    """On the busiest channel."""
    channels: tuple[tuple[str, float], ...]
    """Seconds for each byte of a micro-batch on every channel."""
    taken: tuple[frozenset[tuple[float, float]], frozenset[tuple[float, float]]]
    """What messages take from the tasks of senders and of receivers: for every device, seconds and
    seconds for each byte; empty where messages take nothing."""

    def time_message(self, num_bytes: float) -> float:
        """Seconds until the last message has arrived."""
        return self.latency_s + num_bytes * self.seconds_per_byte

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
        self._flows = [flow for flow in self.problem.flows if flow.owner is not None]
        ends = [(i, flow.owner, r) for i, flow in enumerate(self._flows) for r in flow.readers]
        self._ends = numpy.array(ends, dtype=numpy.int64).reshape(-1, 3).T
        self._has_hosts = any(
            link.host_s or link.host_s_per_byte for link in self.problem.cluster.links
        )
        self._ways: dict[tuple[Devices, Devices], Way] = {}
        self._room: dict[Devices, int] = {}

    def appraise(self, parts: Sequence[Part]) -> Appraisal | None:
        """The estimate for a draft, None when its parts wait for each other."""
        messages = self._sum_messages(parts)
        after: list[list[int]] = [[] for _ in parts]
        for src, dst in messages.forward:
            after[src].append(dst)
        order = sort_parts(len(parts), after)
        if order is None:
            return None
        prices = [self.price(part) for part in parts]
        times = self._time_parts(parts, prices, messages)
        return Estimate(self, parts, prices, times, messages, after, order).make()

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

    def _time_parts(
        self, parts: Sequence[Part], prices: Sequence[StagePrice], messages: Messages
    ) -> list[PartTimes]:
        """Seconds of the parts among each other."""
        closing = [price.reduce_s + price.update_s for price in prices]
        for tie in self.problem.ties:
            inside = set(tie.readers)
            holders = [p for p, part in enumerate(parts) if not inside.isdisjoint(part.nodes)]
            devices = sorted({device for p in holders for device in parts[p].devices})
            reduce_s = self.cost.reduce_time(devices, tie.trained_elements)
            for p in holders:
                closing[p] += reduce_s
        ahead, back = self._time_ends(parts, messages)
        found = []
        for p, price in enumerate(prices):
            trains = price.needs_backward
            backward_s = price.backward_s + back[p]
            found.append(
                PartTimes(
                    forward_s=price.forward_s + ahead[p],
                    backward_s=backward_s,
                    returning_s=price.input_grad_s + back[p] if self.relaxed else backward_s,
                    weights_s=price.weight_grad_s if self.relaxed else 0.0,
                    closing_s=closing[p] if trains else 0.0,
                )
            )
        return found

    def _time_ends(
        self, parts: Sequence[Part], messages: Messages
    ) -> tuple[list[float], list[float]]:
        """What messages take from forwards and from backwards."""
        ahead, back = [0.0] * len(parts), [0.0] * len(parts)
        if self._has_hosts:
            for taken, sums in ((ahead, messages.forward), (back, messages.backward)):
                for (src, dst), num_bytes in sums.items():
                    way = self.way(parts[src].devices, parts[dst].devices)
                    sender_s, receiver_s = way.time_ends(num_bytes)
                    taken[src] += sender_s
                    # A larger micro-batch takes several of the sender's messages.
                    tasks = parts[dst].micro_batch_size / parts[src].micro_batch_size
                    taken[dst] += tasks * receiver_s
        return ahead, back

    def _sum_messages(self, parts: Sequence[Part]) -> Messages:
        """Bytes of one micro-batch of the sender, forward and backward, by (sender, receiver)."""
        part_of = numpy.zeros(self.problem.num_nodes, dtype=numpy.int64)
        for p, part in enumerate(parts):
            part_of[list(part.nodes)] = p
        size_of = [self.problem.size_index[part.micro_batch_size] for part in parts]
        flows, owners, readers = self._ends
        sources, targets = part_of[owners], part_of[readers]
        crossing = (sources != targets).nonzero()[0]
        # A tensor goes to a part once, however many of its nodes read it.
        codes = (flows[crossing] * len(parts) + sources[crossing]) * len(parts) + targets[crossing]
        forward: dict[tuple[int, int], float] = {}
        backward: dict[tuple[int, int], float] = {}
        for code in numpy.unique(codes).tolist():
            (i, src), dst = divmod(code // len(parts), len(parts)), code % len(parts)
            flow = self._flows[i]
            sent = flow.bytes_by_size[size_of[src]]
            forward[src, dst] = forward.get((src, dst), 0.0) + sent
            if flow.needs_grad:
                returned = flow.bytes_by_size[size_of[dst]]
                backward[dst, src] = backward.get((dst, src), 0.0) + returned
        return Messages(forward, backward)

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
        return Way(latency_s, longest, tuple(busy.items()), (taken_by[0], taken_by[1]))
