"""Comparison of a measured timeline with the predicted one: what was off, and by how much.

Tasks are compared by stage and kind, by their mean. Three step times tell where an error comes
from: the predicted one, the one that the simulator gives with the measured task times in place of
the predicted ones, and the measured one. Between the first two lie the costs of tasks; between the
last two lie transfers, launch overheads, and whatever else the simulator does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun
from graphplan.nouns.prices import PricedStages, StagePrice
from graphplan.nouns.task import Kind, Task, parse_task
from graphplan.nouns.timeline import Timeline

FIELD_BY_KIND: dict[str, str] = {
    "F": "forward_s",
    "B": "backward_s",
    "I": "input_grad_s",
    "W": "weight_grad_s",
    "R": "reduce_s",
    "U": "update_s",
}
CLOSE = 0.05
"""Relative error below which a figure counts as right."""


class TaskError(Noun, frozen=True, kw_only=True):
    """One kind of task: of one stage, or of all stages when `stage` is None."""

    stage: int | None
    kind: Kind
    count: int
    predicted_s: float
    """Mean of one task."""
    measured_s: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s if self.predicted_s else float("inf")


class DeviceError(Noun, frozen=True, kw_only=True):
    """Busy and idle seconds of one device within the step."""

    device: int
    predicted_busy_s: float
    measured_busy_s: float
    predicted_idle_s: float
    measured_idle_s: float


class Comparison(Noun, frozen=True, kw_only=True):
    """All that `compare-run` shows."""

    predicted_step_s: float
    explained_step_s: float
    """Simulated with the measured task times."""
    measured_step_s: float
    kinds: tuple[TaskError, ...]
    stages: tuple[TaskError, ...]
    devices: tuple[DeviceError, ...]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_step_s / self.measured_step_s - 1 if self.measured_step_s else 0.0


def compare_timelines(predicted: Timeline, explained: Timeline, measured: Timeline) -> Comparison:
    """Compare task by task; `explained` is the simulation with measured task times."""
    ours, theirs = collect_times(predicted), collect_times(measured)
    missing = sorted(ours.keys() - theirs.keys())
    if missing or theirs.keys() - ours.keys():
        raise InvalidOption(
            f"The run has other tasks than the plan ({len(theirs)} against {len(ours)}).",
            remedy="Give the plan that the run was made with, and a run of whole batches.",
        )
    by_stage: dict[tuple[int, Kind], list[Task]] = {}
    by_kind: dict[Kind, list[Task]] = {}
    for task in sorted(ours):
        by_stage.setdefault((task.stage, task.kind), []).append(task)
        by_kind.setdefault(task.kind, []).append(task)
    return Comparison(
        predicted_step_s=predicted.makespan_s,
        explained_step_s=explained.makespan_s,
        measured_step_s=measured.makespan_s,
        kinds=tuple(
            TaskError(stage=None, kind=kind, **_mean_times(by_kind[kind], ours, theirs))
            for kind in FIELD_BY_KIND
            if kind in by_kind
        ),
        stages=tuple(
            TaskError(stage=stage, kind=kind, **_mean_times(tasks, ours, theirs))
            for (stage, kind), tasks in by_stage.items()
        ),
        devices=tuple(_compare_device(predicted, measured, d) for d in range(measured.num_devices)),
    )


def collect_times(timeline: Timeline) -> dict[Task, float]:
    """Seconds of every task, the mean over its replicas."""
    found: dict[Task, list[float]] = {}
    for span in timeline.spans:
        if isinstance(span.place, int):
            found.setdefault(parse_task(span.name), []).append(span.end_s - span.start_s)
    return {task: sum(times) / len(times) for task, times in found.items()}


def _mean_times(
    tasks: Iterable[Task], ours: dict[Task, float], theirs: dict[Task, float]
) -> dict[str, Any]:
    listed = list(tasks)
    return {
        "count": len(listed),
        "predicted_s": sum(ours[task] for task in listed) / len(listed),
        "measured_s": sum(theirs[task] for task in listed) / len(listed),
    }


def _compare_device(predicted: Timeline, measured: Timeline, device: int) -> DeviceError:
    ours, theirs = predicted.busy_s_by_device[device], measured.busy_s_by_device[device]
    return DeviceError(
        device=device,
        predicted_busy_s=ours,
        measured_busy_s=theirs,
        predicted_idle_s=predicted.makespan_s - ours,
        measured_idle_s=measured.makespan_s - theirs,
    )


def insert_measured(prices: PricedStages, measured: Timeline) -> PricedStages:
    """The prices with the mean of the measured times of every stage and kind."""
    sums: dict[tuple[int, str], list[float]] = {}
    for task, seconds in collect_times(measured).items():
        sums.setdefault((task.stage, task.kind), []).append(seconds)
    stages = []
    for s, price in enumerate(prices.stages):
        means = {
            FIELD_BY_KIND[kind]: sum(times) / len(times)
            for (stage, kind), times in sums.items()
            if stage == s
        }
        replaced: StagePrice = msgspec.structs.replace(price, **means)
        stages.append(replaced)
    return msgspec.structs.replace(prices, stages=tuple(stages))


def list_findings(comparison: Comparison) -> list[str]:
    """What is off, the costliest first, in sentences; one sentence when nothing is."""
    found: list[tuple[float, str]] = []
    for each in comparison.stages:
        gap_s = each.count * (each.measured_s - each.predicted_s)
        if abs(gap_s) > CLOSE * comparison.measured_step_s:
            found.append((abs(gap_s), _describe_task(each, gap_s)))
    rest_s = comparison.measured_step_s - comparison.explained_step_s
    if abs(rest_s) > CLOSE * comparison.measured_step_s:
        found.append((abs(rest_s), _describe_rest(rest_s)))
    if not found:
        return [f"Nothing is off by more than {CLOSE:.0%} of the step."]
    return [text for _, text in sorted(found, reverse=True)]


def _describe_task(each: TaskError, gap_s: float) -> str:
    ratio = f"{each.ratio:.2f} times" if each.predicted_s else "unlike"
    return (
        f"Stage {each.stage}: {each.kind} takes {ratio} the prediction"
        f" ({each.measured_s * 1e3:.2f} ms, not {each.predicted_s * 1e3:.2f}),"
        f" {gap_s * 1e3:+.1f} ms in a step."
    )


def _describe_rest(rest_s: float) -> str:
    if rest_s > 0:
        return (
            f"{rest_s * 1e3:.1f} ms of the step are not in any task: transfers or overheads take"
            " longer than priced."
        )
    return f"Tasks overlap better than simulated, by {-rest_s * 1e3:.1f} ms: links are overpriced."
