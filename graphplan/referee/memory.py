"""Rule `memory`: every device, replayed task by task, stays within its bytes.

The rule is stated in `graphplan.nouns.prices`: fixed bytes always, a task's workspace while it
runs, a micro-batch's saved bytes from the start of its F to the end of its B; with a split backward
a part of them stays from the end of its I to the end of its W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Instruction, Task
from graphplan.referee.verdict import Findings


class High(NamedTuple):
    """The most that a device holds, and the first task at which it does."""

    bytes: int
    position: int | None
    saved: int
    """Bytes of it that are saved activations."""


def replay_line(priced: PricedStages, device: int, instructions: Sequence[Instruction]) -> High:
    """The peak of one device."""
    stages = priced.stages
    fixed = sum(stages[s].fixed_bytes for s in priced.stages_by_device[device])
    high = High(fixed, None, 0)
    saved = 0
    for position, task in enumerate(instructions):
        if not isinstance(task, Task):
            continue
        stage = stages[task.stage]
        keeps = stage.needs_backward
        if task.kind == "F" and keeps:
            saved += stage.saved_bytes
        held = fixed + saved + stage.workspace_bytes
        if held > high.bytes or high.position is None:
            high = High(max(held, high.bytes), position, saved)
        if task.kind == "B" and keeps:
            saved -= stage.saved_bytes
        elif task.kind == "I" and keeps:
            saved -= stage.saved_bytes - stage.saved_for_weights_bytes
        elif task.kind == "W" and keeps:
            saved -= stage.saved_for_weights_bytes
    return high


def judge_memory(
    priced: PricedStages,
    program: Program,
    findings: Findings,
    *,
    predicted: Sequence[int] | None = None,
) -> None:
    """Peaks against the limits, and against what a prediction claims."""
    if predicted is not None and len(predicted) != len(priced.memory_bytes_by_device):
        findings.add(
            "prediction",
            "peak_bytes_by_device",
            f"{len(predicted)} peaks for {len(priced.memory_bytes_by_device)} devices.",
        )
        predicted = None
    for device, limit in enumerate(priced.memory_bytes_by_device):
        line = program.instructions_by_device[device]
        high = replay_line(priced, device, line)
        where = (
            ""
            if high.position is None
            else f", instruction {high.position} ({line[high.position]})"
        )
        if high.bytes > limit:
            findings.add(
                "memory",
                f"device {device}{where}",
                f"{high.bytes:,} bytes are needed, {high.saved:,} of them saved activations;"
                f" {limit:,} are there.",
            )
        if predicted is not None and predicted[device] != high.bytes:
            findings.add(
                "prediction",
                f"device {device}{where}",
                f"a peak of {predicted[device]:,} bytes is predicted, the replay gives"
                f" {high.bytes:,}.",
            )
