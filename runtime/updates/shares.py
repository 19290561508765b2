"""Shares: how much of an update the samples of one task are."""

from __future__ import annotations

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.task import Task
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
