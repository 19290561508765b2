"""collect_figures: the figures of a plan as one flat record, which `--json` prints."""

from __future__ import annotations

from graphplan.cost.expected import find_expected
from graphplan.nouns.base import Noun
from graphplan.nouns.plan import Certainty, Plan

BASELINE_NAMES = {
    "data-parallel": "data parallel",
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
    expected_error: float | None = None
    """Mean error of measured steps on the same devices; left out where none was validated."""
    certainty: Certainty | None = None
    """How far learned costs can be trusted; left out with other costs."""


def collect_figures(
    plan: Plan, path: str, *, search_s: float | None = None, total_s: float | None = None
) -> Figures:
    """The figures of a plan that lies at `path`."""
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
        expected_error=_find_error(plan),
        certainty=plan.provenance.certainty,
    )


def _find_error(plan: Plan) -> float | None:
    """The expected error of an estimated step."""
    found = find_expected(plan.cluster, plan.training.precision)
    return found.error if found is not None and plan.provenance.costs == "estimated" else None
