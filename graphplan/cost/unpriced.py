"""Unpriced: ops whose work nobody has a formula for, and what share of a step they are taken for.

They are priced by the bytes of their operands and results, and a launch. Where that is wrong by
much, a cluster file may say what they take: `[types.a100-80gb] op_us = { my_op = 120 }`.
"""

from __future__ import annotations

from typing import NamedTuple

from graphplan.cost.estimate import estimate_table
from graphplan.cost.kinds import has_formula
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import OpProfile


class Unpriced(NamedTuple):
    """Ops of one target without a formula."""

    target: str
    num_ops: int
    share: float
    """Of the estimated seconds of all ops."""


def find_unpriced(
    graph: OpGraph, device: DeviceType, batch_size: int, *, precision: str | None = None
) -> tuple[Unpriced, ...]:
    """Targets without a formula, the largest share first; those that a hint prices are left out."""
    hints = {name.partition(".")[0] for name in device.overhead_s_by_kind}
    unknown = [op for op in graph.ops if not has_formula(op) and op.kind not in hints]
    if not unknown:
        return ()
    rows = estimate_table(graph, device, batch_sizes=[batch_size], precision=precision).row_by_op
    total = sum(map(_sum_row, rows.values()))
    counts: dict[str, tuple[int, float]] = {}
    for op in unknown:
        count, seconds = counts.get(op.target, (0, 0.0))
        counts[op.target] = (count + 1, seconds + _sum_row(rows[op.name]))
    found = [
        Unpriced(target, count, seconds / total if total else 0.0)
        for target, (count, seconds) in counts.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.share, each.target)))


def describe_unpriced(found: tuple[Unpriced, ...]) -> str:
    """A line that names them; "" where there are none."""
    if not found:
        return ""
    named = ", ".join(f"{each.target} ({each.num_ops}, {each.share:.1%})" for each in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        f"No formula for {named}{more}: priced by bytes alone (ops, share of the estimate)."
        " Say what they take in the cluster file: op_us = { name = microseconds }."
    )


def _sum_row(row: OpProfile) -> float:
    return row.forward_s[0] + row.input_grad_s[0] + row.weight_grad_s[0]
