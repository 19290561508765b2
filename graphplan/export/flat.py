"""Flat JSON: a plan without graphplan's own structures, for runtimes that are written elsewhere.

{"format": "graphplan/flat", "version": 1, "model", "fingerprint", "batch_size", "policy",
 "stages": [{"index", "devices", "micro_batch_size", "recompute", "ops",
             "inputs":  [{"value", "from", "dtype", "shape", "needs_grad"}],
             "outputs": [{"value", "to", "dtype", "shape", "needs_grad"}]}],
 "program": [["0F0", "0>1F0", …] for each device]}

`shape` has "b" (or "12*b") where the batch dimension is; `from` and `to` are stage numbers. The
program's words are explained in graphplan/nouns/task.py.
"""

from __future__ import annotations

from typing import Any

from graphplan.nouns.plan import Plan
from graphplan.nouns.stages import StageEdge


def export_flat(plan: Plan) -> dict[str, Any]:
    """The plan as plain dicts and lists."""
    return {
        "format": "graphplan/flat",
        "version": 1,
        "model": plan.model.name,
        "fingerprint": plan.model.fingerprint,
        "batch_size": plan.training.batch_size,
        "policy": plan.policy.name,
        "stages": [_flatten_stage(plan, s) for s in range(len(plan.stages.stages))],
        "program": [line.split() for line in plan.program],
    }


def _flatten_stage(plan: Plan, index: int) -> dict[str, Any]:
    stage, edges = plan.stages.stages[index], plan.stages.edges
    sent: dict[str, list[StageEdge]] = {}
    for edge in edges:
        if edge.src == index:
            sent.setdefault(edge.value, []).append(edge)
    return {
        "index": index,
        "devices": list(stage.devices),
        "micro_batch_size": stage.micro_batch_size,
        "zero": stage.zero,
        "recompute": list(stage.recompute),
        "ops": list(stage.ops),
        "inputs": [_flatten_edge(e) | {"from": e.src} for e in edges if e.dst == index],
        "outputs": [
            _flatten_edge(each[0])
            | {"to": [e.dst for e in each], "needs_grad": any(e.needs_grad for e in each)}
            for each in sent.values()
        ],
    }


def _flatten_edge(edge: StageEdge) -> dict[str, Any]:
    return {
        "value": edge.value,
        "dtype": edge.spec.dtype,
        "shape": list(edge.spec.shape),
        "needs_grad": edge.needs_grad,
    }
