"""Reductions: what replicas reduce, in which buckets, and what is left when they compute beside.

Gradients are complete in the reverse order of the nodes, each with the end of the node's backward.
A bucket closes when it holds `bucket_bytes`; it takes an all-reduce of what it holds. Where devices
stand for more of a larger cluster (`Problem.miniature`), those are reduced over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.interference import find_reduction_law
from graphplan.cost.sums import StageCosts, StageSums, leave_over
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.prices import Bucket, Reduction
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
        room = problem.training.bucket_bytes / problem.element_bytes
        filled = numpy.flatnonzero(elements)
        buckets, held = [], 0
        for at in filled.tolist():
            held += int(elements[at])
            if held >= room or at == filled[-1]:
                buckets.append(
                    Bucket(
                        bytes=held * problem.element_bytes,
                        seconds=self.time_all(devices, held),
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

    def left_over(self, devices: Sequence[int], elements: Ints, beside_s: Floats) -> Floats:
        """Seconds that are left of reductions beside backwards of `beside_s`, for many stages whose
        gradients come evenly; between NUM_KNOTS amounts, as they are nearly straight there."""
        most = int(elements.max(initial=0))
        if self._are_alone(devices) or not most:
            return numpy.zeros(elements.shape)
        room = max(1, self.problem.training.bucket_bytes // self.problem.element_bytes)
        held = numpy.minimum(elements, room)
        amounts = numpy.unique(held)
        if len(amounts) > NUM_KNOTS:
            amounts = numpy.concatenate([[0], numpy.geomspace(1, held.max(), NUM_KNOTS)])
        seconds = [self.time_all(devices, math.ceil(amount)) for amount in amounts]
        last_s = numpy.interp(held, amounts, seconds)
        law = self._reduction_law(tuple(devices))
        num_buckets = elements / numpy.maximum(held, 1)
        left_s: Floats = leave_over(last_s, num_buckets, beside_s, law)
        return left_s

    def _reduction_law(self, devices: tuple[int, ...]) -> tuple[float, float]:
        if devices not in self._law_by_devices:
            found = find_reduction_law(*self._enlarge(devices))
            self._law_by_devices[devices] = found
        return self._law_by_devices[devices]
