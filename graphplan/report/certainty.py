"""What a plan rests on: how certain learned costs are, and whether the batch can be split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphplan.cost.expected import Expected, count_tokens, find_expected, find_mfu
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.report.units import clean_name, format_rate, format_share


def describe_batch(plan: Plan, sizes: Sequence[int]) -> str:
    """The batch and its micro-batches; a model without a batch dimension has neither."""
    if plan.model.batch == "none":
        return "no batch dimension: one step is one pass over all inputs"
    told = f"batch {plan.training.batch_size} in micro-batches of {', '.join(map(str, sizes))}"
    return f"{told} (the model fixes the size)" if plan.model.batch == "fixed" else told


class Use(NamedTuple):
    """What a step uses and yields, as far as the graph tells."""

    mfu: float | None = None
    tokens_per_s: float | None = None


def find_trust(plan: Plan) -> Expected | None:
    """Measured steps that an estimated one rests on; measured costs need none."""
    if plan.provenance.costs != "estimated":
        return None
    return find_expected(plan.cluster, plan.training.precision)


def describe_step(plan: Plan) -> str:
    """What a predicted step rests on: validated steps, or nothing; measured costs say so below."""
    if plan.provenance.costs != "estimated":
        return ""
    found = find_trust(plan)
    return f"{found}" if found is not None else "not validated"


def is_undecided(plan: Plan, ratio: float) -> bool:
    """Whether a gain over a rival is smaller than the expected error of estimated steps."""
    found = find_trust(plan)
    return found is not None and 1.005 <= ratio < 1 + found.error


def measure_use(plan: Plan, graph: OpGraph | None) -> Use:
    """MFU and tokens a second."""
    if graph is None:
        return Use()
    tokens = count_tokens(graph)
    return Use(
        mfu=find_mfu(graph, plan.cluster, plan.training, plan.prediction.step_s),
        tokens_per_s=tokens * plan.prediction.samples_per_s if tokens is not None else None,
    )


def describe_use(plan: Plan, graph: OpGraph | None) -> str:
    """MFU and tokens a second; "" where the graph does not tell."""
    use, parts = measure_use(plan, graph), []
    if use.mfu is not None:
        parts.append(f"MFU {format_share(use.mfu)} of the {plan.training.precision} peak")
    if use.tokens_per_s is not None:
        parts.append(f"{format_rate(use.tokens_per_s)} tokens/s")
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
