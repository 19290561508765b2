"""describe_stages: one row of figures for each stage of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.errors import InvalidFile
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.report.labels import label_stages
from graphplan.report.spans import Bar, Rows
from graphplan.report.units import clean_name


class StageRow(Noun, frozen=True, kw_only=True):
    """What a reader wants to know of a stage; `peak_bytes` is that of its fullest device."""

    stage: int
    title: str
    modules: tuple[str, ...]
    """() when the plan does not say and no graph was given."""
    num_ops: int
    num_parameters: int | None
    param_bytes: int | None
    fixed_bytes: int
    """Weights, gradients and optimizer state on each device."""
    devices: tuple[int, ...]
    micro_batch_size: int
    num_micro_batches: int
    recompute: bool
    zero: int
    forward_s: float
    backward_s: float
    in_flight: int
    peak_bytes: int
    limit_bytes: int


def describe_stages(
    plan: Plan, timeline: Timeline, rows: Rows, *, graph: OpGraph | None = None
) -> tuple[StageRow, ...]:
    """The rows of a plan; `graph` gives modules and parameters when the plan has no labels."""
    check_shape(plan, timeline)
    labels = plan.labels if len(plan.labels) == len(plan.stages.stages) else ()
    if graph is not None and not labels:
        labels = label_stages(graph, plan.stages)
    limits = plan.prices.memory_bytes_by_device
    peaks = peak_bytes_by_device(plan, timeline)
    found = []
    for s, (stage, price) in enumerate(zip(plan.stages.stages, plan.prices.stages, strict=True)):
        label = labels[s] if labels else None
        modules = tuple(map(clean_name, label.modules)) if label else ()
        fullest = max(price.devices, key=lambda d: peaks[d] / max(1, limits[d]))
        found.append(
            StageRow(
                stage=s,
                title=", ".join(modules) or _name_ops(stage.ops),
                modules=modules,
                num_ops=len(stage.ops),
                num_parameters=label.num_parameters if label else None,
                param_bytes=label.param_bytes if label else None,
                fixed_bytes=price.fixed_bytes,
                devices=price.devices,
                micro_batch_size=price.micro_batch_size,
                num_micro_batches=plan.prices.num_micro_batches(s),
                recompute=bool(stage.recompute),
                zero=stage.zero,
                forward_s=price.forward_s,
                backward_s=price.backward_s,
                in_flight=count_in_flight(rows.devices[price.devices[0]], s),
                peak_bytes=peaks[fullest],
                limit_bytes=limits[fullest],
            )
        )
    return tuple(found)


def peak_bytes_by_device(plan: Plan, timeline: Timeline) -> tuple[int, ...]:
    """The peaks of the timeline, or those that the plan predicts when it has none."""
    return tuple(peak.bytes for peak in timeline.peaks) or plan.prediction.peak_bytes_by_device


def count_in_flight(bars: Sequence[Bar], stage: int) -> int:
    """The most micro-batches of a stage whose forward has started and whose backward has not ended.

    A weight gradient ends a split backward, because what it needs is kept until then.
    """
    most = now = 0
    for bar in bars:
        if bar.stage == stage:
            if bar.kind == "F":
                now += 1
                most = max(most, now)
            elif bar.kind in "BW":
                now -= 1
    return most


def check_shape(plan: Plan, timeline: Timeline) -> None:
    """Refuse a plan whose parts do not speak of the same stages and devices."""
    num_devices = len(plan.prices.memory_bytes_by_device)
    pairs = {
        "priced stages": (len(plan.prices.stages), len(plan.stages.stages)),
        "devices in the cluster": (len(plan.cluster.devices), num_devices),
        "devices in the timeline": (timeline.num_devices, num_devices),
        "peaks": (len(peak_bytes_by_device(plan, timeline)), num_devices),
    }
    for what, (has, needs) in pairs.items():
        if has != needs:
            raise InvalidFile(
                f"The plan has {has} {what} where {needs} are needed.",
                remedy="`graphplan check plan.json` tells what else is wrong with it.",
            )


def _name_ops(ops: Sequence[str]) -> str:
    if not ops:
        return "(no ops)"
    first, last = clean_name(ops[0]), clean_name(ops[-1])
    return first if len(ops) == 1 else f"{first} … {last}"
