"""Shares: how much of an update the samples of one task are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.task import Instruction, Task
from graphplan_runtime.messages.parcels import Split


def share_update(split: Split, policy: WeightPolicy, task: Task, replica: int) -> float:
    """The share of a task's samples in all those of its update.

    An update takes the whole batch, or `accumulate` micro-batches without a drain; replicas that
    train by themselves count their own samples only.
    """
    covered = range(split.counts[task.stage])
    if not policy.is_synchronous:
        first = task.micro_batch // policy.accumulate * policy.accumulate
        covered = range(first, first + policy.accumulate)
    pieces = [piece for m in covered for piece in split.pieces(task.stage, m)]
    if policy.name == "local":
        pieces = [piece for piece in pieces if piece.replica == replica]
    own = split.piece(task.stage, task.micro_batch, replica)
    return len(own.rows) / sum(len(piece.rows) for piece in pieces)


def list_last(line: Sequence[Instruction], policy: WeightPolicy) -> Iterable[Task]:
    """By stage and update, the last task of a line that adds to its gradients."""
    found: dict[tuple[int, int], Task] = {}
    for task in line:
        if isinstance(task, Task) and task.kind in ("B", "W"):
            update = 0 if policy.is_synchronous else task.micro_batch // policy.accumulate
            found[task.stage, update] = task
    return found.values()
