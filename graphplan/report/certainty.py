"""What a plan rests on: how certain learned costs are, and whether the batch can be split."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.cost.expected import count_tokens, find_expected, find_mfu
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.report.units import clean_name, format_rate, format_share


def describe_batch(plan: Plan, sizes: Sequence[int]) -> str:
    """The batch and its micro-batches; a model without a batch dimension has neither."""
    if plan.model.batch == "none":
        return "no batch dimension: one step is one pass over all inputs"
    told = f"batch {plan.training.batch_size} in micro-batches of {', '.join(map(str, sizes))}"
    return f"{told} (the model fixes the size)" if plan.model.batch == "fixed" else told


def describe_step(plan: Plan) -> str:
    """What a predicted step rests on: validated steps, or nothing; measured costs say so below."""
    if plan.provenance.costs != "estimated":
        return ""
    found = find_expected(plan.cluster, plan.training.precision)
    return f"{found}" if found is not None else "not validated"


def is_undecided(plan: Plan, ratio: float) -> bool:
    """Whether a gain over a rival is smaller than the expected error of estimated steps."""
    if plan.provenance.costs != "estimated":
        return False
    found = find_expected(plan.cluster, plan.training.precision)
    return found is not None and 1.005 <= ratio < 1 + found.error


def describe_use(plan: Plan, graph: OpGraph | None) -> str:
    """MFU and tokens a second, as far as the graph tells; "" where it does not."""
    if graph is None:
        return ""
    parts = []
    mfu = find_mfu(graph, plan.cluster, plan.training, plan.prediction.step_s)
    if mfu is not None:
        parts.append(f"MFU {format_share(mfu)} of the {plan.training.precision} peak")
    tokens = count_tokens(graph)
    if tokens is not None:
        parts.append(f"{format_rate(tokens * plan.prediction.samples_per_s)} tokens/s")
    return ", ".join(parts)


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
