"""Appraiser: prices of parts and the ways between them, for quick estimates of drafts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.model import CostModel
from graphplan.cost.rows import share_rows
from graphplan.partition.assemble import Part
from graphplan.partition.drafts.estimate import Appraisal, Devices, Estimate, PartPrice, sort_parts


@dataclasses.dataclass(frozen=True)
class _Way:
    """Messages from one group of devices to another."""

    latency_s: float
    seconds_per_byte: float
    """On the busiest channel."""
    channels: tuple[tuple[str, float], ...]
    """Seconds for each byte of a micro-batch on every channel."""


class Appraiser:
    """Appraises drafts of one problem."""

    def __init__(self, cost: CostModel, *, relaxed: bool = False) -> None:
        self.cost, self.problem, self.relaxed = cost, cost.problem, relaxed
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
        order = sort_parts(len(parts), after)
        if order is None:
            return None
        return Estimate(self, parts, forward, backward, after, order).make()

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
        returning_s = inputs_s + part.recompute * forward_s if trains else 0.0
        backward_s = returning_s + weights_s if trains else 0.0
        return PartPrice(
            forward_s=forward_s,
            backward_s=backward_s,
            returning_s=returning_s if self.relaxed else backward_s,
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
