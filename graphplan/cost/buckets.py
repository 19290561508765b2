"""Reductions: what replicas send each other, in which buckets, and what is left beside computing.

Gradients are complete in the reverse order of the nodes, each with the end of the node's backward.
A bucket closes when it holds `bucket_bytes`; it takes an all-reduce of what it holds, or half of
one where replicas share their states (ZeRO):

    zero 1   gradients are scattered, every replica updates its share, the weights are gathered in U
    zero 2   the same, in the backward of every micro-batch, whose end waits for it
    zero 3   weights are gathered before each forward and each backward, at the pace of the ops, and
             nothing is in U

What happens in every micro-batch is taken at an even pace (`leave_over`). Where devices
stand for more of a larger cluster (`Problem.miniature`), those are reduced over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.interference import find_reduction_law
from graphplan.cost.links import collective_time
from graphplan.cost.sums import StageCosts, StageSums, leave_over
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.prices import Bucket, Reduction, StagePrice
from graphplan.nouns.problem import Floats, Ints, Problem

NUM_KNOTS = 32
"""Amounts between which the seconds of many reductions are interpolated."""


class Reductions:
    """Reductions of the gradients of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._law_by_devices: dict[tuple[int, ...], tuple[float, float]] = {}
        self._time_by_amount: dict[tuple[tuple[int, ...], int], float] = {}

    def time_all(self, devices: Sequence[int], elements: int) -> float:
        """Seconds to reduce the gradients of so many weights at once over these devices."""
        key = (tuple(devices), elements)
        if key not in self._time_by_amount:
            num_bytes = elements * self.problem.element_bytes
            self._time_by_amount[key] = allreduce_time(*self._enlarge(devices), num_bytes)
        return self._time_by_amount[key]

    def time_shares(self, devices: Sequence[int], elements: int) -> float:
        """Seconds to scatter gradients of so many weights over these devices, or to gather them:
        half of an all-reduce, which is one after the other, but for what a link says."""
        cluster, whole = self._enlarge(devices)
        num_bytes = elements * self.problem.element_bytes
        nodes = {cluster.devices[device].node for device in whole}
        if len(nodes) > 1:
            return allreduce_time(cluster, whole, num_bytes) / 2
        return collective_time(cluster.nodes[nodes.pop()].link, "all_gather", len(whole), num_bytes)

    def count_replicas(self, num_devices: int) -> int:
        """Replicas of a stage on so many devices, those for which they stand counted."""
        whole = self.problem.miniature
        return num_devices if whole is None else num_devices * whole.times

    def _enlarge(self, devices: Sequence[int]) -> tuple[Cluster, Sequence[int]]:
        """The cluster and the devices that these stand for."""
        whole = self.problem.miniature
        if whole is None:
            return self.problem.cluster, devices
        return whole.cluster, whole.enlarge(devices)

    def _are_alone(self, devices: Sequence[int]) -> bool:
        return len(devices) < 2 and self.problem.miniature is None

    def fill_buckets(
        self,
        nodes: tuple[int, ...],
        devices: tuple[int, ...],
        samples: int,
        types: tuple[int, ...],
        sums: StageSums,
        costs: StageCosts,
        *,
        is_shared: bool,
    ) -> Reduction | None:
        """The buckets of a stage in the order in which they are complete; None where nothing is
        reduced."""
        problem = self.problem
        elements = problem.trained_elements[list(nodes[::-1])]
        if self._are_alone(devices) or not sums.trains or not elements.any():
            return None
        size, order = problem.size_index[samples], numpy.array(nodes[::-1])
        inputs, weights = (
            array[list(types), size][:, order].max(axis=0).cumsum()
            for array in (problem.input_grad_s, problem.weight_grad_s)
        )
        ends = inputs + weights
        # B recomputes first; a stage that hands nothing back has all of its backward in W.
        again_s = max(0.0, costs.backward_s - float(ends[-1]))
        halves = weights if sums.returns else ends
        take = self.time_shares if is_shared else self.time_all
        room = problem.training.bucket_bytes / problem.element_bytes
        filled = numpy.flatnonzero(elements)
        buckets, held = [], 0
        for at in filled.tolist():
            held += int(elements[at])
            if held >= room or at == filled[-1]:
                buckets.append(
                    Bucket(
                        bytes=held * problem.element_bytes,
                        seconds=take(devices, held),
                        backward_s=min(again_s + float(ends[at]), costs.backward_s),
                        weight_grad_s=min(float(halves[at]), costs.weight_grad_s),
                    )
                )
                held = 0
        around = [*devices[1:], devices[0]]
        slows, slowed = self._reduction_law(devices)
        return Reduction(
            buckets=tuple(buckets),
            lanes=tuple(map(problem.cluster.channel_between, devices, around)),
            slows=slows,
            slowed=slowed,
        )

    def share_weights(self, price: StagePrice, elements: int, zero: int) -> StagePrice:
        """The price with what a level of ZeRO asks for beyond scattered gradients."""
        if zero == 0 or price.reduction is None:
            return price
        gather_s = self._gather_all(price.devices, elements)
        count = self.problem.training.batch_size // price.micro_batch_size
        if zero == 1 or (zero == 2 and count == 1):
            return msgspec.structs.replace(price, update_s=price.update_s + gather_s)
        scatter_s = sum(bucket.seconds for bucket in price.reduction.buckets)
        num, law = len(price.reduction.buckets), (price.reduction.slows, price.reduction.slowed)
        moved = {"forward_s": 0.0, "input_grad_s": 0.0}
        moved |= dict.fromkeys(("backward_s", "weight_grad_s"), scatter_s)
        if zero == 3:
            moved = {name: seconds + gather_s for name, seconds in moved.items()}
        longer = {}
        for name, seconds in moved.items():
            alone_s = getattr(price, name)
            longer[name] = alone_s + float(leave_over(seconds / num, num, alone_s, law))
        if zero == 2:
            longer["update_s"] = price.update_s + gather_s
        return msgspec.structs.replace(price, reduction=None, **longer)

    def _gather_all(self, devices: Sequence[int], elements: int) -> float:
        """Seconds to gather so many weights in buckets."""
        room = max(1, self.problem.training.bucket_bytes // self.problem.element_bytes)
        whole, rest = divmod(elements, room)
        return whole * self.time_shares(devices, room) + self.time_shares(devices, rest)

    def left_over(self, devices: Sequence[int], elements: Ints, beside_s: Floats) -> Floats:
        """Seconds that replicas send beyond backwards of `beside_s`, for many stages whose
        gradients come evenly; between NUM_KNOTS amounts, as they are nearly straight there. At the
        usual level of ZeRO, whose gathering is in it."""
        most = int(elements.max(initial=0))
        if self._are_alone(devices) or not most:
            return numpy.zeros(elements.shape)
        is_shared = self.problem.usual_zero > 0 and len(devices) > 1
        take = self.time_shares if is_shared else self.time_all
        room = max(1, self.problem.training.bucket_bytes // self.problem.element_bytes)
        held = numpy.minimum(elements, room)
        amounts = numpy.unique(held)
        if len(amounts) > NUM_KNOTS:
            amounts = numpy.concatenate([[0], numpy.geomspace(1, held.max(), NUM_KNOTS)])
        seconds = [take(devices, math.ceil(amount)) for amount in amounts]
        last_s = numpy.interp(held, amounts, seconds)
        law = self._reduction_law(tuple(devices))
        num_buckets = elements / numpy.maximum(held, 1)
        left_s: Floats = leave_over(last_s, num_buckets, beside_s, law)
        return left_s + num_buckets * last_s if is_shared else left_s

    def _reduction_law(self, devices: tuple[int, ...]) -> tuple[float, float]:
        if devices not in self._law_by_devices:
            found = find_reduction_law(*self._enlarge(devices))
            self._law_by_devices[devices] = found
        return self._law_by_devices[devices]
