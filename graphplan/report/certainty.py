"""What a plan rests on: how certain learned costs are, and whether the batch can be split."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.plan import Plan
from graphplan.report.units import clean_name, format_share


def describe_batch(plan: Plan, sizes: Sequence[int]) -> str:
    """The batch and its micro-batches; a model without a batch dimension has neither."""
    if plan.model.batch == "none":
        return "no batch dimension: one step is one pass over all inputs"
    told = f"batch {plan.training.batch_size} in micro-batches of {', '.join(map(str, sizes))}"
    return f"{told} (the model fixes the size)" if plan.model.batch == "fixed" else told


def describe_certainty(plan: Plan) -> tuple[str, ...]:
    """Lines about learned costs; none for other costs."""
    found = plan.provenance.certainty
    if found is None:
        return ()
    lines = [
        f"uncertainty: step time {format_share(found.step_uncertainty)} (one standard deviation)",
        f"learned by: {clean_name(found.origin)}",
    ]
    if found.extrapolated_ops:
        lines.insert(
            1,
            f"EXTRAPOLATED: {found.extrapolated_ops:,} of {len(plan.model.ops):,} ops,"
            f" {format_share(found.extrapolated_share)} of the time, lie outside the training data",
        )
    return tuple(lines)
