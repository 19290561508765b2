"""Rules for stage graphs: the ops are cut into convex sets whose quotient is the stage graph.

C1 and C2 of GraphPipe (arXiv 2406.17145): every op is in one stage, stages are convex, an op edge
between two stages is a stage edge, and the stage graph is acyclic.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.plan import PlannedModel
from graphplan.nouns.stages import StageGraph
from graphplan.referee.cuts import find_cycle, find_detour, group_edges
from graphplan.referee.verdict import Findings, Verdict


def check_stages(model: PlannedModel, stages: StageGraph) -> Verdict:
    """Judge a stage graph against the op DAG that it cuts."""
    findings = Findings()
    judge_stages(model, stages, findings)
    return findings.conclude()


def judge_stages(model: PlannedModel, stages: StageGraph, findings: Findings) -> None:
    """Ops, convexity, order, edges and replicas."""
    stage_by_op = _judge_cover(model, stages, findings)
    if stage_by_op is not None:
        _judge_shape(model, stages, stage_by_op, findings)
        _judge_edges(model, stages, stage_by_op, findings)
    for s, stage in enumerate(stages.stages):
        if stage.micro_batch_size % len(stage.devices):
            findings.add(
                "replica-split",
                f"stage {s}",
                f"micro-batches of {stage.micro_batch_size} samples cannot be split evenly over"
                f" {len(stage.devices)} devices.",
            )


def _judge_cover(model: PlannedModel, stages: StageGraph, findings: Findings) -> list[int] | None:
    """The stage of every op; None when the ops are not covered exactly once."""
    position_by_op = {name: i for i, name in enumerate(model.ops)}
    if len(position_by_op) != len(model.ops):
        findings.add("op-once", "model", "two ops of the model have the same name.")
        return None
    stage_by_op = [-1] * len(model.ops)
    is_whole = True
    for s, stage in enumerate(stages.stages):
        if not stage.ops:
            findings.add("op-once", f"stage {s}", "has no ops.")
            is_whole = False
        for name in stage.ops:
            position = position_by_op.get(name)
            if position is None:
                findings.add("op-once", f"stage {s}", f"op {name!r} is not in the model.")
                is_whole = False
            elif stage_by_op[position] >= 0:
                findings.add(
                    "op-once",
                    f"stage {s}",
                    f"op {name!r} is already in stage {stage_by_op[position]}.",
                )
                is_whole = False
            else:
                stage_by_op[position] = s
    for position, s in enumerate(stage_by_op):
        if s < 0:
            findings.add("op-once", "model", f"op {model.ops[position]!r} is in no stage.")
            is_whole = False
    return stage_by_op if is_whole else None


def _judge_shape(
    model: PlannedModel, stages: StageGraph, stage_by_op: Sequence[int], findings: Findings
) -> None:
    """Convex stages, an acyclic quotient, numbers in topological order."""
    quotient = group_edges(model.edges, stage_by_op)
    cycle = find_cycle(len(stages.stages), quotient)
    if cycle is not None:
        findings.add(
            "stage-acyclic",
            f"stages {cycle}",
            "data flows in a circle: " + " -> ".join(map(str, [*cycle, cycle[0]])) + ".",
        )
        for s in cycle:
            detour = find_detour(model.edges, stage_by_op, s)
            if detour is not None:
                left, back = (model.ops[op] for op in detour)
                findings.add(
                    "stage-convex",
                    f"stage {s}",
                    f"a path leaves it to op {left!r} and comes back from op {back!r}.",
                )
        return
    for (src, dst), (a, b) in quotient.items():
        if src > dst:
            findings.add(
                "stage-order",
                f"stage {src}",
                f"op {model.ops[a]!r} feeds op {model.ops[b]!r} of the earlier stage {dst}.",
            )


def _judge_edges(
    model: PlannedModel, stages: StageGraph, stage_by_op: Sequence[int], findings: Findings
) -> None:
    """Stage edges are exactly the values that pass between stages."""
    needed: dict[tuple[int, int, str], str] = {}
    for a, b in model.edges:
        if stage_by_op[a] != stage_by_op[b]:
            needed[stage_by_op[a], stage_by_op[b], model.ops[a]] = model.ops[b]
    present: set[tuple[int, int, str]] = set()
    for edge in stages.edges:
        key = (edge.src, edge.dst, edge.value)
        if key in present:
            _complain(findings, key, "is there twice.")
        elif key not in needed:
            _complain(findings, key, f"no op of stage {edge.dst} reads it from stage {edge.src}.")
        present.add(key)
    for key, reader in needed.items():
        if key not in present:
            _complain(findings, key, f"is missing; op {reader!r} reads it.")


def _complain(findings: Findings, key: tuple[int, int, str], message: str) -> None:
    src, dst, value = key
    findings.add("stage-edges", f"edge {src} -> {dst}", f"value {value!r}: {message}")


def judge_devices(
    devices_by_stage: Sequence[Sequence[int]], num_devices: int, findings: Findings
) -> None:
    """Devices exist, are named once in a stage, and two stages share all of them or none."""
    group_by_device: dict[int, tuple[int, ...]] = {}
    for s, devices in enumerate(devices_by_stage):
        if len(set(devices)) != len(devices):
            findings.add("device-groups", f"stage {s}", f"names a device twice: {list(devices)}.")
        for device in devices:
            if not 0 <= device < num_devices:
                findings.add(
                    "device-exists", f"stage {s}", f"device {device}; there are {num_devices}."
                )
            group = group_by_device.setdefault(device, tuple(devices))
            if group != tuple(devices):
                findings.add(
                    "device-groups",
                    f"stage {s}",
                    f"device {device} is in {list(group)} and in {list(devices)}.",
                )
