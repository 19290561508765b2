"""judge_certainty: how far the learned tables of a plan can be trusted."""

from __future__ import annotations

from collections.abc import Mapping

from graphplan.nouns.plan import Certainty
from graphplan.nouns.table import ProfileTable


def judge_certainty(tables: Mapping[str, ProfileTable]) -> Certainty | None:
    """The least certain of the learned tables; None when no table was learned."""
    learned = [_judge_table(table) for table in tables.values() if table.source == "learned"]
    return max(
        learned, key=lambda each: (each.extrapolated_share, each.step_uncertainty), default=None
    )


def _judge_table(table: ProfileTable) -> Certainty:
    seconds = {
        row.op: sum(row.forward_s) + sum(row.input_grad_s) + sum(row.weight_grad_s)
        for row in table.rows
    }
    guessed = [row.op for row in table.rows if row.extrapolated]
    total_s = sum(seconds.values())
    return Certainty(
        step_uncertainty=table.step_uncertainty,
        extrapolated_ops=len(guessed),
        extrapolated_share=sum(seconds[op] for op in guessed) / total_s if total_s else 0.0,
        origin=table.provenance,
    )
