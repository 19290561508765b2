"""Settings: micro-batch sizes and device units to be searched, the promising ones first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.model import CostModel
from graphplan.cost.sums import price_sums
from graphplan.nouns.problem import Problem
from graphplan.partition.trees.stagetable import Setting, list_widths

MAX_UNITS = 64


@dataclasses.dataclass(frozen=True)
class Prospect:
    """A setting with what a perfectly balanced pipeline would take under it."""

    setting: Setting
    cycle_s: float
    path_s: float
    """The longest way of one micro-batch through the graph and back."""
    step_s: float


def list_prospects(cost: CostModel) -> list[Prospect]:
    """Settings whose stages could fit, the shortest ideal step first."""
    problem = cost.problem
    outlook = _Outlook(cost)
    found = [
        outlook.look_ahead(size, unit)
        for unit in list_units(len(problem.cluster.devices))
        for size in problem.micro_batch_sizes
        if size % unit == 0 and size // unit in problem.size_index
    ]
    return sorted(
        (each for each in found if each is not None),
        key=lambda p: (p.step_s, p.setting.unit, p.setting.micro_batch_size),
    )


def list_units(num_devices: int) -> list[int]:
    """Divisors of the number of devices and powers of two, as far as the units stay countable."""
    wanted = {d for d in range(1, num_devices + 1) if num_devices % d == 0}
    wanted |= {1 << k for k in range(num_devices.bit_length()) if num_devices >> k >= 2}
    return sorted(unit for unit in wanted if num_devices // unit <= MAX_UNITS)


class _Outlook:
    """What all settings of a problem have in common."""

    def __init__(self, cost: CostModel) -> None:
        self.cost, self.problem = cost, cost.problem
        problem, everything = cost.problem, range(cost.problem.num_nodes)
        types = range(len(problem.cluster.types))
        self.sums = [cost.sum_nodes(everything, each, types) for each in problem.sample_sizes]
        self.flow_bytes = [
            sum(flow.buffer_bytes(size) for flow in problem.flows)
            for size in range(len(problem.sample_sizes))
        ]
        self.memory_bytes = min(device.memory_bytes for device in problem.cluster.devices)
        self.path_by_size: dict[int, float] = {}

    def look_ahead(self, size: int, unit: int) -> Prospect | None:
        """A setting with its ideal step, None when its stages are too large for a device."""
        problem = self.problem
        num_units = len(problem.cluster.devices) // unit
        count = problem.training.batch_size // size
        index = problem.size_index[size // unit]
        costs = price_sums(
            problem,
            self.sums[index],
            range(len(problem.cluster.types)),
            sharing=self.cost.usual_sharing(unit),
        )
        if costs.fixed_bytes > num_units * self.memory_bytes:
            return None
        in_flight = min(num_units, count)
        # Whether one device could hold everything, with so many micro-batches in flight.
        whole = costs.fixed_bytes + costs.workspace_bytes + self.flow_bytes[index]
        roomy = whole + in_flight * costs.saved_bytes <= self.memory_bytes
        setting = Setting(
            micro_batch_size=size,
            unit=unit,
            num_units=num_units,
            num_micro_batches=count,
            memory_bytes=self.memory_bytes,
            roomy=roomy,
        )
        cycle_s = bound_cycle(self.cost, setting)
        path_s = max(cycle_s, self._measure_path(index))
        share = self.sums[index].own_elements // num_units
        beside_s = costs.backward_s / num_units
        left_s = self.cost.reductions.left_over(range(unit), numpy.array([share]), beside_s)
        closing_s = float(left_s[0]) + costs.update_s / num_units
        return Prospect(setting, cycle_s, path_s, (count - 1) * cycle_s + path_s + closing_s)

    def _measure_path(self, index: int) -> float:
        if index not in self.path_by_size:
            seconds = self.cost.mean_times.busy_s[index]
            self.path_by_size[index] = measure_path(self.problem, seconds.tolist())
        return self.path_by_size[index]


def bound_cycle(cost: CostModel, setting: Setting) -> float:
    """The shortest cycle for which the units suffice, if every node had a stage of its own.

    A node that takes longer than the cycle needs replicas, which then see fewer samples.
    """
    problem = cost.problem
    widths = list_widths(problem, setting)
    sizes = [problem.size_index[setting.micro_batch_size // (w * setting.unit)] for w in widths]
    seconds = cost.mean_times.busy_s[sizes]
    unit_seconds = seconds * numpy.array(widths)[:, None]
    low = float(unit_seconds.min(axis=0).sum()) / setting.num_units
    high = max(low, float(unit_seconds[0].sum()))
    while high - low > 0.005 * high:
        middle = (low + high) / 2
        needed = numpy.where(seconds <= middle, unit_seconds, numpy.inf).min(axis=0).sum()
        low, high = (low, middle) if needed <= setting.num_units * middle else (middle, high)
    return low


def measure_path(problem: Problem, seconds: Sequence[float]) -> float:
    """The heaviest path of nodes."""
    heads = [0.0] * problem.num_nodes
    for node, sources in enumerate(problem.predecessors):
        heads[node] = seconds[node] + max((heads[src] for src in sources), default=0.0)
    return max(heads, default=0.0)
