"""Lessons: a measured table beside the features of its graph, in the units that were timed.

Short ops are timed in groups, and their shares of a group's time are the roofline's, not measured.
So predictions are compared with what a clock saw: the sum over a unit, an op alone or a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

from graphplan.cost.estimate import PASSES
from graphplan.cost.features import FEATURES, Floats, GraphFeatures, extract_features
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.costset import CostSample
from graphplan.nouns.table import ProfileTable

Ints = NDArray[numpy.int64]
FLOOR_S = 2e-7
"""Times are compared above this floor: less is beneath the clock."""


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One sample, ready to learn from or to be judged by."""

    model: str
    device: DeviceType
    features: GraphFeatures
    unit_by_op: Ints
    measured_s: Floats
    """[size, unit, pass]"""
    unit_kinds: tuple[str, ...]
    """The op kind of a unit; of a group, that of the op with the largest share."""
    ratios: Floats
    """[size]: step over sum of ops; empty when no step was measured."""

    @property
    def num_units(self) -> int:
        """How many units were timed."""
        return int(self.measured_s.shape[1])

    @property
    def sums_s(self) -> Floats:
        """[size]: measured seconds of all ops."""
        return numpy.asarray(self.measured_s.sum((1, 2)))

    def sum_units(self, seconds: Floats) -> Floats:
        """[size, unit, pass] from [size, op, pass]."""
        summed = numpy.zeros(self.measured_s.shape)
        for j in range(seconds.shape[0]):
            numpy.add.at(summed[j], self.unit_by_op, seconds[j])
        return summed


def read_lesson(
    sample: CostSample, device_type: DeviceType, *, roofline: DeviceType | None = None
) -> Lesson:
    """The lesson of one sample; `roofline` is the calibrated form of its device type."""
    table = sample.table
    features = extract_features(
        sample.graph, device_type, batch_sizes=table.batch_sizes, roofline=roofline
    )
    seconds = tabulate_seconds(table, [op.name for op in sample.graph.ops])
    units = _number_units(table, [op.name for op in sample.graph.ops])
    measured = numpy.zeros((len(table.batch_sizes), int(units.max(initial=-1)) + 1, len(PASSES)))
    for j in range(len(table.batch_sizes)):
        numpy.add.at(measured[j], units, seconds[j])
    return Lesson(
        model=sample.model,
        device=device_type,
        features=features,
        unit_by_op=units,
        measured_s=measured,
        unit_kinds=_name_units(features.kinds, units, seconds[-1].sum(1)),
        ratios=numpy.array(table.calibration),
    )


def tabulate_seconds(table: ProfileTable, ops: Sequence[str]) -> Floats:
    """[size, op, pass] of a table, without its calibration."""
    rows = [table.row_by_op[op] for op in ops]
    columns = [[getattr(row, f"{name}_s") for name in PASSES] for row in rows]
    shape = (len(ops), len(PASSES), len(table.batch_sizes))
    return numpy.array(columns, dtype=float).reshape(shape).transpose(2, 0, 1)


def _number_units(table: ProfileTable, ops: Sequence[str]) -> Ints:
    """The unit of every op: ops of a group share one."""
    number: dict[str, int] = {}
    units = []
    for op in ops:
        group = table.row_by_op[op].group
        units.append(number.setdefault(f"group {group}" if group else f"op {op}", len(number)))
    return numpy.array(units, dtype=numpy.int64)


def _name_units(kinds: Sequence[str], units: Ints, seconds: Floats) -> tuple[str, ...]:
    longest: dict[int, int] = {}
    for i, unit in enumerate(units.tolist()):
        if unit not in longest or seconds[i] > seconds[longest[unit]]:
            longest[unit] = i
    return tuple(kinds[longest[unit]] for unit in range(len(longest)))


@dataclasses.dataclass(frozen=True)
class Rows:
    """All different units of many lessons, flat: one row for each op of them at each size."""

    values: Floats
    """[row, feature]"""
    reference_s: Floats
    """[row, pass]"""
    kinds: tuple[str, ...]
    families: tuple[str, ...]
    unit_by_row: Ints
    measured_s: Floats
    """[unit, pass]"""


def flatten_lessons(lessons: Iterable[Lesson]) -> Rows:
    """The units of all lessons, equal ones once (equal layers share one measurement)."""
    seen: set[bytes] = set()
    values, reference, kinds, families = [], [], [], []
    unit_by_row: list[int] = []
    measured: list[Floats] = []
    for lesson in lessons:
        members = _list_members(lesson.unit_by_op)
        for j in range(len(lesson.features.batch_sizes)):
            for unit, ops in enumerate(members):
                key = (
                    lesson.features.values[j, ops].tobytes() + lesson.measured_s[j, unit].tobytes()
                )
                if key in seen:
                    continue
                seen.add(key)
                values.append(lesson.features.values[j, ops])
                reference.append(lesson.features.reference_s[j, ops])
                kinds += [lesson.features.kinds[op] for op in ops]
                families += [lesson.features.families[op] for op in ops]
                unit_by_row += [len(measured)] * len(ops)
                measured.append(lesson.measured_s[j, unit])
    return Rows(
        values=numpy.concatenate([numpy.zeros((0, len(FEATURES))), *values]),
        reference_s=numpy.concatenate([numpy.zeros((0, len(PASSES))), *reference]),
        kinds=tuple(kinds),
        families=tuple(families),
        unit_by_row=numpy.array(unit_by_row, dtype=numpy.int64),
        measured_s=numpy.array(measured).reshape(-1, len(PASSES)),
    )


def _list_members(unit_by_op: Ints) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(int(unit_by_op.max(initial=-1)) + 1)]
    for op, unit in enumerate(unit_by_op.tolist()):
        members[unit].append(op)
    return members
