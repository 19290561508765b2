"""Estimate: a profile table without a device, by a roofline with efficiencies.

An op takes max(FLOPs / (peak * efficiency), bytes / (bandwidth * efficiency)) (Williams et al.,
"Roofline", CACM 2009) plus an overhead where one was calibrated, and at least the launch time.
Compute kinds use their own efficiency for arithmetic and `memory` for bytes, other kinds one
efficiency for both. Efficiencies and overheads are looked up from special to general:
`conv2d.weight_grad`, `conv2d`, `conv.weight_grad`, `conv`, `memory`; without an entry they are 1
and 0.

Assumptions, and when they break: ops run one at a time and are not fused; efficiency does not
depend on the size of an op (small matrix products reach less); views are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from graphplan.cost.flops import Work, WorkCounter
from graphplan.cost.kinds import COMPUTE_KINDS
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.table import OpProfile, ProfileTable

Pass = Literal["forward", "input_grad", "weight_grad"]
PASSES: tuple[Pass, ...] = ("forward", "input_grad", "weight_grad")


def estimate_table(
    graph: OpGraph,
    device_type: DeviceType,
    *,
    batch_sizes: Sequence[int],
    precision: str | None = None,
) -> ProfileTable:
    """The roofline times of every op; `precision` replaces the floating dtypes of the graph."""
    sizes = tuple(sorted(set(batch_sizes)))
    counter = WorkCounter(graph, precision=precision)
    known: dict[tuple[object, ...], OpProfile] = {}
    rows = []
    for op in graph.ops:
        works = tuple(counter.count_op(op, size) for size in sizes)
        key = (op.kind, *map(id, works))
        if key not in known:
            known[key] = _estimate_row(op, works, device_type)
        rows.append(_rename_row(known[key], op.name))
    return ProfileTable(
        graph=graph.fingerprint,
        device=device_type.name,
        source="estimated",
        batch_sizes=sizes,
        rows=tuple(rows),
        provenance=f"roofline of {device_type.name}"
        + (f" in {precision}" if precision else "")
        + (f"; {device_type.source}" if device_type.source else ""),
    )


def estimate_pass(op: Op, work: Work, device_type: DeviceType, name: Pass) -> float:
    """Seconds of one pass of an op."""
    share = find_efficiency(device_type, op.kind, work.kind, name)
    roof = find_roof(work, device_type, name, share)
    if not roof:
        return 0.0
    overhead = _look_up(device_type.overhead_s_by_kind, op.kind, work.kind, name) or 0.0
    return max(roof + overhead, device_type.launch_s)


def find_roof(work: Work, device_type: DeviceType, name: Pass, share: float) -> float:
    """Seconds of one pass at a share of the peak: the slower of arithmetic and memory."""
    flops: int = getattr(work, f"{name}_flops")
    moved: int = getattr(work, f"{name}_bytes")
    compute = work.kind in COMPUTE_KINDS
    memory_share = device_type.efficiency_by_kind.get("memory", 1.0) if compute else share
    rate = find_rate(device_type, work.dtype if compute else "float32")
    return max(
        flops / (rate * share),
        moved / (device_type.bandwidth_bytes_per_s * memory_share),
    )


def find_efficiency(device_type: DeviceType, op_kind: str, kind: str, name: Pass) -> float:
    """Share of the peak that a pass of an op reaches."""
    shares = device_type.efficiency_by_kind
    found = _look_up(shares, op_kind, kind, name)
    if found is not None:
        return found
    return 1.0 if kind in COMPUTE_KINDS else shares.get("memory", 1.0)


def _look_up(figures: Mapping[str, float], op_kind: str, kind: str, name: Pass) -> float | None:
    """The most special figure for a pass of an op."""
    family = "matmul" if kind == "rnn" else kind
    keys = (f"{op_kind}.{name}", op_kind, f"{family}.{name}", family)
    return next((figures[key] for key in keys if key in figures), None)


def find_rate(device_type: DeviceType, dtype: str) -> float:
    """Peak FLOPs per second of a dtype; one without units of its own runs at the float32 rate."""
    rates = device_type.flops_per_s_by_dtype
    if dtype in rates:
        return rates[dtype]
    return rates["float32"] if "float32" in rates else min(rates.values())


def _estimate_row(op: Op, works: Sequence[Work], device_type: DeviceType) -> OpProfile:
    forward, inputs, weights = (
        tuple(estimate_pass(op, work, device_type, name) for work in works) for name in PASSES
    )
    return OpProfile(
        op=op.name,
        forward_s=forward,
        input_grad_s=inputs,
        weight_grad_s=weights,
        workspace_bytes=tuple(work.live_bytes for work in works),
    )


def _rename_row(row: OpProfile, name: str) -> OpProfile:
    return OpProfile(
        op=name,
        forward_s=row.forward_s,
        input_grad_s=row.input_grad_s,
        weight_grad_s=row.weight_grad_s,
        workspace_bytes=row.workspace_bytes,
    )
