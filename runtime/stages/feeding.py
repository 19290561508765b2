"""Feeding: a task's rows of what the user gives."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphplan.nouns.task import Task
from graphplan_runtime.messages.parcels import Split
from graphplan_runtime.messages.rows import BatchAxis
from graphplan_runtime.stages.executor import StepState


def cut_input(
    split: Split, task: Task, replica: int, name: str, axis: BatchAxis | None
) -> Callable[[StepState], torch.Tensor]:
    """A model input's rows for a task; the input is split once for all tasks of the stage."""
    if axis is None:
        return lambda state: state.inputs[name]
    stage = task.stage
    pieces = [p for m in range(split.counts[stage]) for p in split.pieces(stage, m)]
    sizes = [len(piece.rows) * axis.scale for piece in pieces]
    index = task.micro_batch * len(split.stages.stages[stage].devices) + replica
    key, dim = (name, stage), axis.dim

    def cut(state: StepState) -> torch.Tensor:
        parts = state.parts.get(key)
        if parts is None:
            parts = state.parts[key] = torch.split(state.inputs[name], sizes, dim)
        return parts[index]

    return cut
