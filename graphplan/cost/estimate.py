"""Estimate: a profile table without a device, by the laws of its kernels.

A pass of an op takes the sum of its kernels (cost/kernels.py), each priced by the law of its class
(cost/laws). Where tables of the device were measured, the sum is scaled and an overhead added by op
and pass (cost/calibrate.py), looked up from special to general: `conv2d.weight_grad`, `conv2d`,
`conv.weight_grad`, `conv`.

Eager torch issues kernel after kernel from the host, which runs ahead of the device: a pass of the
model takes the longer of what the device computes and what the host issues (`host_s` a kernel).
What the host takes longer is spread over the kernels of the pass. Compilers and recorded graphs
issue everything at once.

Assumptions, and when they break: kernels run one at a time; views are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from graphplan.cost.flops import Work, WorkCounter
from graphplan.cost.fuse import fuse_works
from graphplan.cost.laws.kernel import Kernel, Rows, Stream
from graphplan.cost.laws.price import price_kernels
from graphplan.errors import InvalidOption
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.table import OpProfile, ProfileTable

Pass = Literal["forward", "input_grad", "weight_grad"]
PASSES: tuple[Pass, ...] = ("forward", "input_grad", "weight_grad")
PHASES: tuple[tuple[Pass, ...], ...] = (("forward",), ("input_grad", "weight_grad"))
"""Passes that the host issues in one go."""


class Estimator:
    """Prices passes of ops on one device; equal kernels are priced once."""

    def __init__(self, device_type: DeviceType) -> None:
        self._type = device_type
        self._seconds: dict[Kernel, float] = {}

    def prepare(self, works: Iterable[Work]) -> None:
        """Price all kernels of some works at once."""
        wanted = dict.fromkeys(kernel for work in works for kernel in list_kernels(work))
        new = [kernel for kernel in wanted if kernel not in self._seconds]
        self._seconds |= zip(new, price_kernels(new, self._type), strict=True)

    def pass_time(self, op: Op, work: Work, name: Pass) -> float:
        """Seconds of one pass of an op."""
        kernels: tuple[Kernel, ...] = getattr(work, name)
        if not kernels:
            return 0.0
        if not all(kernel in self._seconds for kernel in kernels):
            self.prepare([work])
        seconds = sum(self._seconds[kernel] for kernel in kernels)
        if not (self._type.scale_by_kind or self._type.overhead_s_by_kind):
            return seconds
        scale = _look_up(self._type.scale_by_kind, op.kind, work.kind, name)
        overhead = _look_up(self._type.overhead_s_by_kind, op.kind, work.kind, name)
        return max(seconds * (scale or 1.0) + (overhead or 0.0), self._type.launch_s)


def list_kernels(work: Work) -> tuple[Kernel, ...]:
    """The kernels of all passes."""
    return (*work.forward, *work.input_grad, *work.weight_grad)


def count_launches(kernels: Iterable[Kernel]) -> int:
    """Kernels that the host issues; streams and rows may stand for several."""
    return sum(each.launches if isinstance(each, Stream | Rows) else 1 for each in kernels)


def estimate_table(
    graph: OpGraph,
    device_type: DeviceType,
    *,
    batch_sizes: Sequence[int],
    precision: str | None = None,
) -> ProfileTable:
    """The times of every op by the laws; `precision` replaces the floating dtypes of the graph."""
    sizes = tuple(sorted(set(batch_sizes)))
    counter = WorkCounter(graph, precision=precision)
    works = [[counter.count_op(op, size) for op in graph.ops] for size in sizes]
    if device_type.fuses:
        works = [fuse_works(graph, each) for each in works]
    estimator = Estimator(device_type)
    estimator.prepare({id(work): work for each in works for work in each}.values())
    columns = [_estimate_column(graph, each, estimator, device_type.host_s) for each in works]
    known: dict[tuple[object, ...], tuple[tuple[float, ...], ...]] = {}
    rows = []
    for i, op in enumerate(graph.ops):
        key = (op.kind, *(id(each[i]) for each in works))
        if key not in known:
            known[key] = tuple(zip(*(column[i] for column in columns), strict=True))
        forward, inputs, weights = known[key]
        rows.append(
            OpProfile(
                op=op.name,
                forward_s=forward,
                input_grad_s=inputs,
                weight_grad_s=weights,
                workspace_bytes=tuple(each[i].live_bytes for each in works),
            )
        )
    try:
        return ProfileTable(
            graph=graph.fingerprint,
            device=device_type.name,
            source="estimated",
            batch_sizes=sizes,
            rows=tuple(rows),
            provenance=f"laws of {device_type.name}"
            + (f" in {precision}" if precision else "")
            + (f"; {device_type.source}" if device_type.source else ""),
        )
    except ValueError as error:
        raise InvalidOption(
            f"The figures of the device type {device_type.name!r} give no times: {error}.",
            remedy="Look at its laws, rates and launch times in the cluster file.",
        ) from error


def _estimate_column(
    graph: OpGraph, works: Sequence[Work], estimator: Estimator, host_s: float
) -> list[tuple[float, ...]]:
    """Seconds of every op by pass, at one size."""
    known: dict[tuple[str, int], tuple[float, ...]] = {}
    found = []
    for op, work in zip(graph.ops, works, strict=True):
        key = (op.kind, id(work))
        if key not in known:
            known[key] = tuple(estimator.pass_time(op, work, name) for name in PASSES)
        found.append(known[key])
    if not host_s:
        return found
    gaps = dict.fromkeys(PASSES, 0.0)
    for phase in PHASES:
        num = sum(count_launches(getattr(work, name)) for work in works for name in phase)
        device = sum(times[PASSES.index(name)] for times in found for name in phase)
        gaps |= dict.fromkeys(phase, max(0.0, num * host_s - device) / max(1, num))
    return [
        tuple(
            seconds + gaps[name] * count_launches(getattr(work, name))
            for name, seconds in zip(PASSES, times, strict=True)
        )
        for work, times in zip(works, found, strict=True)
    ]


def _look_up(figures: Mapping[str, float], op_kind: str, kind: str, name: Pass) -> float | None:
    """The most special figure for a pass of an op."""
    family = "matmul" if kind == "rnn" else kind
    keys = (f"{op_kind}.{name}", op_kind, f"{family}.{name}", family)
    return next((figures[key] for key in keys if key in figures), None)
