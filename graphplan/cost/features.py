"""Features: what the learned cost model knows of an op at a micro-batch size; no torch.

Every feature follows from the op graph and the device type: work (FLOPs and bytes by pass), the
roofline's seconds, shapes of result and operands, what a convolution or product looks like, the
dtype, the device's peak rates. Sizes enter as logarithms. The model predicts the log of seconds
over `reference_s`, a roofline (calibrated where the device was measured) with the launch time as
floor: the device's rates scale the answer, and only what the roofline is blind to must be learned.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import get_args

import numpy
from numpy.typing import NDArray

from graphplan.cost.estimate import PASSES, Estimator
from graphplan.cost.flops import FLOATS, OperandSpec, Work, WorkCounter
from graphplan.cost.kinds import COMPUTE_KINDS, Kind
from graphplan.cost.laws.price import find_rate
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.tensor import ITEM_BYTES

Floats = NDArray[numpy.float64]
LEAST_S = 1e-7
"""No reference is shorter, also on a device whose launches are free."""
FAMILIES: tuple[str, ...] = get_args(Kind)
"""Kinds of ops that share a formula; each is a feature of its own."""

_PASS_NAMES = tuple(
    f"{name} {what}" for name in PASSES for what in ("flops", "bytes", "roofline", "exists")
)
_SHAPE_NAMES = (
    "result elements", "result last", "result rank", "results live",
    "first elements", "first last", "first second-last", "first is weight", "first is view",
    "second elements", "second last", "second second-last", "second is weight", "second is view",
    "operands", "weights", "weight elements", "rows", "last aligned", "inner aligned",
    "kernel", "groups", "channels in", "channels out", "shrink", "flags", "fraction", "readers",
    "shared input",
)  # fmt: skip
_DEVICE_NAMES = ("intensity", "item bytes", "float", "peak flops", "bandwidth", "launch")
FEATURES = (*_PASS_NAMES, *_SHAPE_NAMES, *_DEVICE_NAMES, *FAMILIES)
"""Names of the columns of `GraphFeatures.values`."""
_FRACTION = re.compile(r", 0\.\d*[1-9]")
"""A positional argument between 0 and 1: the probability of a dropout that is not switched off."""
RANGED = tuple(
    FEATURES.index(name)
    for name in (
        *(f"{name} {what}" for name in PASSES for what in ("flops", "bytes")),
        "result elements", "result last", "first elements", "second elements",
    )
)  # fmt: skip
"""Columns that tell how large an op is: beyond their range in training, a prediction is a guess."""
DEVICE_COLUMNS = tuple(FEATURES.index(name) for name in ("peak flops", "bandwidth", "launch"))


@dataclasses.dataclass(frozen=True)
class GraphFeatures:
    """Features of all ops of a graph: axes are size, op and column (or pass)."""

    batch_sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    families: tuple[str, ...]
    dtypes: tuple[str, ...]
    values: Floats
    """[size, op, feature]"""
    reference_s: Floats
    """[size, op, pass]: the roofline's seconds, 0 where an op has no such pass."""
    workspace_bytes: NDArray[numpy.int64]
    """[size, op]"""
    edges: NDArray[numpy.int64]
    """[2, edge]: producers and consumers."""


def extract_features(
    graph: OpGraph,
    device_type: DeviceType,
    *,
    batch_sizes: Sequence[int],
    roofline: DeviceType | None = None,
    precision: str | None = None,
) -> GraphFeatures:
    """Features of a graph on a device type, whose calibrated form `roofline` gives the reference.

    Equal ops are looked at once.
    """
    sizes = tuple(sorted(set(batch_sizes)))
    reader = _OpReader(graph, device_type, roofline or device_type, precision)
    index_by_key: dict[object, int] = {}
    position: list[int] = []
    columns: list[list[_Reading]] = []
    for op in graph.ops:
        key = reader.key_of(op)
        if key not in index_by_key:
            index_by_key[key] = len(columns)
            columns.append([reader.read(op, size) for size in sizes])
        position.append(index_by_key[key])
    order = numpy.array(position, dtype=numpy.int64)
    parts = [[each[j] for each in columns] for j in range(len(sizes))]
    found = {op.name: i for i, op in enumerate(graph.ops)}
    edges = [(found[edge.src], found[edge.dst]) for edge in graph.edges]
    works = [columns[i][0].work for i in position]
    return GraphFeatures(
        batch_sizes=sizes,
        kinds=tuple(op.kind for op in graph.ops),
        families=tuple(work.kind for work in works),
        dtypes=tuple(work.dtype for work in works),
        values=numpy.array([[each.values for each in part] for part in parts])[:, order],
        reference_s=numpy.array([[each.reference_s for each in part] for part in parts])[:, order],
        workspace_bytes=numpy.array(
            [[each.work.live_bytes for each in part] for part in parts], dtype=numpy.int64
        )[:, order],
        edges=numpy.array(edges, dtype=numpy.int64).reshape(-1, 2).T,
    )


@dataclasses.dataclass(frozen=True)
class _Reading:
    """One op at one size."""

    work: Work
    values: tuple[float, ...]
    reference_s: tuple[float, ...]


class _OpReader:
    """Reads the features of the ops of one graph."""

    def __init__(
        self,
        graph: OpGraph,
        device_type: DeviceType,
        roofline: DeviceType,
        precision: str | None,
    ) -> None:
        self._graph = graph
        self._type = device_type
        self._roofline, self._estimator = roofline, Estimator(roofline)
        self._counter = WorkCounter(graph, precision=precision)
        self._num_readers = _count_readers(graph)

    def key_of(self, op: Op) -> object:
        """Ops with equal keys have equal features."""
        return (
            op.target, op.call, op.alias is None, op.needs_backward, op.output,
            self._counter.list_operands(op), self._count_context(op), self._find_views(op),
            self._counter.count_op(op, self._graph.batch_size) if op.output is None else None,
        )  # fmt: skip

    def read(self, op: Op, size: int) -> _Reading:
        """The features of an op at a size."""
        work = self._counter.count_op(op, size)
        specs = self._counter.list_operands(op)
        exists = _find_passes(op, specs)
        least_s = max(self._roofline.launch_s, LEAST_S)
        reference = tuple(
            max(self._estimator.pass_time(op, work, name), least_s) if has else 0.0
            for name, has in zip(PASSES, exists, strict=True)
        )
        values = (
            *self._read_passes(work, reference, exists),
            *self._read_shapes(op, work, specs, size),
            *self._read_device(work),
            *(float(work.kind == family) for family in FAMILIES),
        )
        return _Reading(work, values, reference)

    def _read_passes(
        self, work: Work, reference: Sequence[float], exists: Sequence[bool]
    ) -> list[float]:
        found = []
        for name, seconds, has in zip(PASSES, reference, exists, strict=True):
            flops, moved = getattr(work, f"{name}_flops"), getattr(work, f"{name}_bytes")
            over_launch = math.log(seconds / LEAST_S) if has else 0.0
            found += [math.log1p(flops), math.log1p(moved), over_launch, float(has)]
        return found

    def _read_shapes(
        self, op: Op, work: Work, specs: Sequence[OperandSpec], size: int
    ) -> list[float]:
        result = op.output.sizes(size) if op.output else ()
        operands = [(spec.sizes(size), weight) for spec, _, weight in specs]
        views = self._find_views(op)
        found = [
            math.log1p(math.prod(result)), math.log1p(result[-1] if result else 1),
            float(len(result)), math.log1p(work.live_bytes),
        ]  # fmt: skip
        for i in range(2):
            sizes, weight = operands[i] if i < len(operands) else ((), False)
            last, before = (*(1, 1), *sizes)[-1], (*(1, 1), *sizes)[-2]
            found += [
                math.log1p(math.prod(sizes) if i < len(operands) else 0), math.log1p(last),
                math.log1p(before), float(weight), float(i < len(views) and views[i]),
            ]  # fmt: skip
        inner = operands[0][0][-1] if operands and operands[0][0] else 1
        last = result[-1] if result else 1
        weights = sum(math.prod(sizes) for sizes, weight in operands if weight)
        return [
            *found, float(len(operands)), float(len(op.weights)), math.log1p(weights),
            math.log1p(math.prod(result[:-1])), float(last % 16 == 0), float(inner % 16 == 0),
            *_read_filters(work, operands, result), float(op.call.count("True")),
            float(_FRACTION.search(op.call) is not None), *self._count_context(op),
        ]  # fmt: skip

    def _read_device(self, work: Work) -> list[float]:
        compute = work.kind in COMPUTE_KINDS
        rate = find_rate(self._type, work.dtype if compute else "float32")
        arithmetic_s = work.forward_flops / rate
        memory_s = work.forward_bytes / self._type.bandwidth_bytes_per_s
        is_float = work.dtype in FLOATS
        return [
            math.log((arithmetic_s + 1e-9) / (memory_s + 1e-9)),
            math.log2(ITEM_BYTES.get(work.dtype, 4)),
            float(is_float),
            math.log(rate),
            math.log(self._type.bandwidth_bytes_per_s),
            math.log(max(self._type.launch_s, LEAST_S)),
        ]

    def _count_context(self, op: Op) -> tuple[float, float]:
        """Readers of the result, and whether another op reads an input of this one too."""
        shared = any(self._num_readers.get(name, 0) > 1 for name in op.inputs)
        return math.log1p(self._num_readers.get(op.name, 0)), float(shared)

    def _find_views(self, op: Op) -> tuple[bool, ...]:
        """Which of the first inputs are views: their strides may be unusual."""
        ops = self._graph.op_by_name
        return tuple(name in ops and ops[name].alias is not None for name in op.inputs[:2])


def _find_passes(op: Op, specs: Sequence[OperandSpec]) -> tuple[bool, bool, bool]:
    """Which passes an op has: always a forward, each half of the backward where it is needed."""
    inputs = op.needs_backward and any(grad and not weight for _, grad, weight in specs)
    weights = op.needs_backward and any(grad and weight for _, grad, weight in specs)
    if op.needs_backward and not inputs and not weights and op.inputs:
        inputs = True  # reads a value without a tensor of its own, such as a split's
    return True, inputs, weights


def _read_filters(
    work: Work, operands: Sequence[tuple[tuple[int, ...], bool]], result: tuple[int, ...]
) -> list[float]:
    """Kernel, groups, channels and shrinking of a convolution or pooling; zeros otherwise."""
    if work.kind not in ("conv", "pool") or not operands or not operands[0][0] or not result:
        return [0.0] * 5
    image = operands[0][0]
    shrink = math.log(max(1, math.prod(image[2:])) / max(1, math.prod(result[2:])))
    if work.kind == "pool" or len(operands) < 2 or len(operands[1][0]) < 3:
        return [0.0, 0.0, math.log1p(image[1] if len(image) > 1 else 1), 0.0, shrink]
    filters = operands[1][0]
    groups = max(1.0, image[1] / filters[1]) if len(image) > 1 else 1.0
    return [
        math.log(math.prod(filters[2:])),
        math.log(groups),
        math.log1p(image[1] if len(image) > 1 else 1),
        math.log1p(result[1] if len(result) > 1 else 1),
        shrink,
    ]


def _count_readers(graph: OpGraph) -> dict[str, int]:
    count: dict[str, int] = {}
    for op in graph.ops:
        for name in dict.fromkeys(op.inputs):
            count[name] = count.get(name, 0) + 1
    return count
