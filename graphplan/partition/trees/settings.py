"""Settings: micro-batch sizes and device units to be searched, the promising ones first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.model import CostModel, bytes_per_trained_element
from graphplan.nouns.problem import Ints, Problem
from graphplan.partition.dag.work import MeanTimes
from graphplan.partition.trees.closing import measure_closing
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


def list_prospects(cost: CostModel, times: MeanTimes) -> list[Prospect]:
    """Settings whose stages could fit, the shortest ideal step first."""
    problem = cost.problem
    outlook = _Outlook(cost, times)
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

    def __init__(self, cost: CostModel, times: MeanTimes) -> None:
        self.cost, self.times, self.problem = cost, times, cost.problem
        problem = cost.problem
        each = sum(bytes_per_trained_element(problem.training, problem.element_bytes))
        self.elements = int(problem.trained_elements.sum())
        self.elements += sum(tie.trained_elements for tie in problem.ties)
        held = int(problem.held_bytes.sum()) + sum(tie.held_bytes for tie in problem.ties)
        self.fixed_bytes = self.elements * each + held
        num_sizes = len(problem.sample_sizes)
        self.flow_bytes = _sum_by_size([flow.bytes_by_size for flow in problem.flows], num_sizes)
        saves = _sum_by_size([save.bytes_by_size for save in problem.saves], num_sizes)
        self.saved_bytes = problem.saved_bytes.sum(axis=1) + saves
        self.memory_bytes = min(device.memory_bytes for device in problem.cluster.devices)
        self.path_by_size: dict[int, float] = {}

    def look_ahead(self, size: int, unit: int) -> Prospect | None:
        """A setting with its ideal step, None when its stages are too large for a device."""
        problem = self.problem
        num_units = len(problem.cluster.devices) // unit
        count = problem.training.batch_size // size
        index = problem.size_index[size // unit]
        if self.fixed_bytes > num_units * self.memory_bytes:
            return None
        setting = Setting(
            micro_batch_size=size,
            unit=unit,
            num_units=num_units,
            num_micro_batches=count,
            memory_bytes=self.memory_bytes,
            roomy=self._is_roomy(min(num_units, count), index),
        )
        cycle_s = bound_cycle(problem, self.times, setting)
        path_s = max(cycle_s, self._measure_path(index))
        closing = measure_closing(self.cost, unit)
        closing_s = closing.start_s + closing.seconds_per_element * self.elements / num_units
        return Prospect(setting, cycle_s, path_s, (count - 1) * cycle_s + path_s + closing_s)

    def _measure_path(self, index: int) -> float:
        if index not in self.path_by_size:
            seconds = self.times.forward_s[index] + self.times.backward_s[index]
            self.path_by_size[index] = measure_path(self.problem, seconds.tolist())
        return self.path_by_size[index]

    def _is_roomy(self, in_flight: int, index: int) -> bool:
        """Whether one device could hold everything, with so many micro-batches in flight."""
        workspace = int(self.problem.workspace_bytes[index].max(initial=0))
        buffers = 2 * int(self.flow_bytes[index])
        kept = in_flight * int(self.saved_bytes[index])
        return self.fixed_bytes + workspace + buffers + kept <= self.memory_bytes


def _sum_by_size(rows: Sequence[tuple[int, ...]], num_sizes: int) -> Ints:
    found: Ints = numpy.array(rows, dtype=numpy.int64).reshape(len(rows), num_sizes).sum(axis=0)
    return found


def bound_cycle(problem: Problem, times: MeanTimes, setting: Setting) -> float:
    """The shortest cycle for which the units suffice, if every node had a stage of its own.

    A node that takes longer than the cycle needs replicas, which then see fewer samples.
    """
    widths = list_widths(problem, setting)
    sizes = [problem.size_index[setting.micro_batch_size // (w * setting.unit)] for w in widths]
    seconds = times.forward_s[sizes] + times.backward_s[sizes]
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
