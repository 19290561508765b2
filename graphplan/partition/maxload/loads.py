"""Loads of parts, the bound that one op puts on every cut, and why no cut fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from graphplan.errors import NoFeasiblePlan
from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer

MOST_OPS = 24
"""Ops for which the cheapest part is computed, the heaviest first."""
FLOW_UNITS = 1 << 48
"""Integer capacities: units of all work and all tensors together."""


def measure_load(problem: MaxLoad, part: Iterable[int]) -> float:
    """Seconds of a part: its ops, and every tensor that has ends inside and outside."""
    inside = set(part)
    touched = {t for op in inside for t in problem.tensors_by_op[op]}
    moved = (problem.tensors[t].seconds for t in touched if not problem.tensors[t].ends <= inside)
    return math.fsum((*(problem.ops[op].seconds for op in inside), *moved))


def make_parts_answer(
    problem: MaxLoad,
    parts: Sequence[Sequence[int]],
    *,
    solver: str,
    bound_s: float,
    proven: bool,
    note: str = "",
) -> PartsAnswer:
    """The answer with its value computed from the parts; a proven value is its own bound."""
    kept = tuple(tuple(sorted(part)) for part in parts if part)
    value_s = max(measure_load(problem, part) for part in kept)
    return PartsAnswer(
        solver=solver,
        parts=kept,
        value_s=value_s,
        bound_s=value_s if proven else min(bound_s, value_s),
        proven=proven,
        note=note,
    )


def bound_load(problem: MaxLoad) -> float:
    """What no cut can beat: even work, or the cheapest part around one op.

    Some part holds op v. Whatever else is in it, its load is the work of its ops and the tensors
    that it cuts; the least of that over all sets with v, convex or not, is a minimum cut: v is the
    source, an op pays its work to stay with v, a tensor pays if its ends are on both sides.
    """
    best_s = max(problem.seconds / problem.num_parts, max(op.seconds for op in problem.ops))
    if problem.num_parts == 1:
        return best_s
    alone = {v: measure_load(problem, [v]) for v in range(problem.num_ops)}
    heaviest = sorted(alone, key=lambda v: -alone[v])[:MOST_OPS]
    for v in heaviest:
        if alone[v] > best_s:
            best_s = max(best_s, _cheapest_part(problem, v))
    return best_s


def _cheapest_part(problem: MaxLoad, op: int) -> float:
    from ortools.graph.python import max_flow

    num, sink = problem.num_ops, problem.num_ops
    total_s = problem.seconds + math.fsum(tensor.seconds for tensor in problem.tensors)
    unit_s = total_s / FLOW_UNITS
    flow = max_flow.SimpleMaxFlow()
    for v, each in enumerate(problem.ops):
        flow.add_arc_with_capacity(v, sink, math.floor(each.seconds / unit_s))
    for t, tensor in enumerate(problem.tensors):
        # A tensor is cut between its two knots when some ends are with the op and some are not.
        near, far = num + 1 + 2 * t, num + 2 + 2 * t
        flow.add_arc_with_capacity(near, far, math.floor(tensor.seconds / unit_s))
        for end in tensor.ends:
            flow.add_arc_with_capacity(end, near, FLOW_UNITS)
            flow.add_arc_with_capacity(far, end, FLOW_UNITS)
    status = flow.solve(op, sink)
    # Rounding down keeps the bound valid; the whole graph as one part is always a cut.
    return flow.optimal_flow() * unit_s if status == flow.OPTIMAL else 0.0


def explain_parts(problem: MaxLoad) -> NoFeasiblePlan:
    """The error for a max-load problem that no cut within memory solves."""
    limit = problem.memory_bytes or 0
    total = sum(op.bytes for op in problem.ops)
    largest = max(problem.ops, key=lambda op: op.bytes)
    if largest.bytes > limit:
        return NoFeasiblePlan(
            f"The op {largest.name!r} needs {largest.bytes:,} bytes, a device has {limit:,}.",
            remedy=f"Use devices with at least {largest.bytes:,} bytes.",
        )
    least = -(-total // limit)
    return NoFeasiblePlan(
        f"{problem.num_parts} devices of {limit:,} bytes cannot hold {problem.name!r}, which needs"
        f" {total:,} bytes, in a cut along its edges.",
        remedy=f"Use {max(least, problem.num_parts + 1)} devices or more.",
    )
