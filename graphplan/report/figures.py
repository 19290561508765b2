"""collect_figures: the figures of a plan as one flat record, which `--json` prints."""

from __future__ import annotations

from graphplan.cost.expected import Expected
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Certainty, Plan
from graphplan.report.certainty import find_trust, is_undecided, measure_use

BASELINE_NAMES = {
    "data-parallel": "data parallel (DDP)",
    "zero-1": "data parallel with ZeRO-1",
    "fsdp": "FSDP (ZeRO-3)",
    "sequential": "the best sequential pipeline",
    "linear": "the best linear cut as a graph",
}
"""Baselines that every search computes, as a reader calls them."""

COST_SOURCES = {
    "estimated": "estimated by the laws of the hardware profile, not measured",
    "measured": "measured op by op on the device",
    "learned": "predicted by the learned cost model",
}
"""What `provenance.costs` means."""


def explain_missing(plan: Plan) -> str:
    """Why a baseline has no step time."""
    options = plan.provenance.options
    was_asked = options.get("baselines") != "False" and bool(options or plan.baselines)
    return "found no plan that fits" if was_asked else "was not asked for"


class Figures(Noun, frozen=True, kw_only=True, omit_defaults=True):
    """What `search --json` and `show --json` print."""

    plan: str
    """Path of the plan file."""
    step_s: float
    samples_per_s: float
    bubble: float
    bound_s: float
    gap: float
    peak_bytes_by_device: tuple[int, ...]
    baselines: dict[str, float]
    search_s: float | None = None
    """Of the search alone; left out when the plan was read from a file."""
    total_s: float | None = None
    mfu: float | None = None
    """Share of the devices' peak; left out where a graph or its FLOPs are not at hand."""
    tokens_per_s: float | None = None
    """Left out where the model reads no tokens."""
    expected: Expected | None = None
    """Errors of measured steps on the same devices; left out where none was validated."""
    undecided: tuple[str, ...] = ()
    """Baselines over which the gain is smaller than the expected error."""
    certainty: Certainty | None = None
    """How far learned costs can be trusted; left out with other costs."""


def collect_figures(
    plan: Plan,
    path: str,
    *,
    graph: OpGraph | None = None,
    search_s: float | None = None,
    total_s: float | None = None,
) -> Figures:
    """The figures of a plan that lies at `path`; its graph tells what it uses of the devices."""
    use, step_s = measure_use(plan, graph), plan.prediction.step_s
    return Figures(
        plan=path,
        step_s=plan.prediction.step_s,
        samples_per_s=plan.prediction.samples_per_s,
        bubble=plan.prediction.bubble,
        bound_s=plan.bound.step_s,
        gap=plan.gap,
        peak_bytes_by_device=plan.prediction.peak_bytes_by_device,
        baselines=plan.baselines,
        search_s=search_s,
        total_s=total_s,
        mfu=use.mfu,
        tokens_per_s=use.tokens_per_s,
        expected=find_trust(plan),
        undecided=tuple(
            name for name, other_s in plan.baselines.items()
            if step_s and is_undecided(plan, other_s / step_s)
        ),
        certainty=plan.provenance.certainty,
    )  # fmt: skip
