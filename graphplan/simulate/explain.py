"""explain_timeline: what holds a run back, and what to fix first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.task import Task, parse_instruction
from graphplan.nouns.timeline import Timeline

CROWDED = 0.9
"""Share of a device's memory, or of a channel's time, from which on it is worth a word."""


class Finding(Noun, frozen=True, kw_only=True):
    """One thing that costs time or memory, with the share that it costs."""

    kind: Literal["compute", "transfer", "update", "bubble", "channel", "memory"]
    place: str
    share: float
    """Of the makespan, or of the device's memory."""
    message: str
    remedy: str


def explain_timeline(timeline: Timeline, priced: PricedStages) -> tuple[Finding, ...]:
    """What to fix first: memory that does not fit, then what costs most of the makespan."""
    total = timeline.makespan_s
    found = _judge_memory(timeline, priced)
    if total:
        found += [*_judge_path(timeline), *_judge_bubble(timeline), *_judge_channels(timeline)]
    return tuple(sorted(found, key=lambda each: (not _is_overfull(each), -each.share, each.place)))


def _is_overfull(finding: Finding) -> bool:
    return finding.kind == "memory" and finding.share > 1


def _judge_path(timeline: Timeline) -> list[Finding]:
    """The stage, the transfers and the updates that fill the critical path."""
    compute: dict[int, float] = defaultdict(float)
    update: dict[int, float] = defaultdict(float)
    transfer: dict[str, float] = defaultdict(float)
    for name, seconds in timeline.path_s_by_name.items():
        each = parse_instruction(name)
        if not isinstance(each, Task):
            transfer[f"{each.src}>{each.dst}"] += seconds
        elif each.kind in ("R", "U"):
            update[each.stage] += seconds
        else:
            compute[each.stage] += seconds
    return [
        *_judge_compute(compute, timeline.makespan_s),
        *_judge_transfers(transfer, timeline.makespan_s),
        *_judge_updates(update, timeline.makespan_s),
    ]


def _judge_compute(seconds_by_stage: Mapping[int, float], total_s: float) -> list[Finding]:
    if not seconds_by_stage:
        return []
    stage = max(seconds_by_stage, key=seconds_by_stage.__getitem__)
    return [
        Finding(
            kind="compute",
            place=f"stage {stage}",
            share=seconds_by_stage[stage] / total_s,
            message=f"Stage {stage} computes for {seconds_by_stage[stage]:.4g} s of the critical"
            f" path of {total_s:.4g} s.",
            remedy="Give it fewer ops or more devices.",
        )
    ]


def _judge_transfers(seconds_by_edge: Mapping[str, float], total_s: float) -> list[Finding]:
    spent_s = sum(seconds_by_edge.values())
    if spent_s <= 0:
        return []
    worst = max(seconds_by_edge, key=seconds_by_edge.__getitem__)
    return [
        Finding(
            kind="transfer",
            place=worst,
            share=spent_s / total_s,
            message=f"Transfers take {spent_s:.4g} s of the critical path of {total_s:.4g} s, most"
            f" of it {worst} ({seconds_by_edge[worst]:.4g} s).",
            remedy="Cut where less flows, put the two stages on one node, or keep more"
            " micro-batches in flight.",
        )
    ]


def _judge_updates(seconds_by_stage: Mapping[int, float], total_s: float) -> list[Finding]:
    spent_s = sum(seconds_by_stage.values())
    if spent_s <= 0:
        return []
    stage = max(seconds_by_stage, key=seconds_by_stage.__getitem__)
    return [
        Finding(
            kind="update",
            place=f"stage {stage}",
            share=spent_s / total_s,
            message=f"Reductions and updates take {spent_s:.4g} s of the critical path of"
            f" {total_s:.4g} s, most of it in stage {stage}.",
            remedy="Use fewer replicas of a stage with many parameters, or larger batches.",
        )
    ]


def _judge_bubble(timeline: Timeline) -> list[Finding]:
    shares = timeline.bubble_by_device
    idle = max(range(len(shares)), key=shares.__getitem__)
    return [
        Finding(
            kind="bubble",
            place=f"device {idle}",
            share=timeline.bubble,
            message=f"Devices idle for {timeline.bubble:.1%} of the time, device {idle} for"
            f" {shares[idle]:.1%}.",
            remedy="Use more micro-batches, a split backward, or balance the stages.",
        )
    ]


def _judge_channels(timeline: Timeline) -> list[Finding]:
    total = timeline.makespan_s
    return [
        Finding(
            kind="channel",
            place=channel,
            share=seconds / total,
            message=f"Channel {channel} is busy for {seconds:.4g} of {total:.4g} s.",
            remedy="Send less through it: move a cut, or place neighbouring stages together.",
        )
        for channel, seconds in sorted(timeline.busy_s_by_channel.items())
        if seconds >= CROWDED * total
    ]


def _judge_memory(timeline: Timeline, priced: PricedStages) -> list[Finding]:
    """The device that is nearest to its limit, and all beyond it."""
    pairs = zip(timeline.peaks, priced.memory_bytes_by_device, strict=False)
    shares = [peak.bytes / max(1, limit) for peak, limit in pairs]
    fullest = max(range(len(shares)), key=shares.__getitem__, default=-1)
    found = []
    for device, share in enumerate(shares):
        if share > 1 or (device == fullest and share >= CROWDED):
            peak = timeline.peaks[device]
            parts = sorted(peak.parts.items(), key=lambda part: -part[1])[:3]
            found.append(
                Finding(
                    kind="memory",
                    place=f"device {device}",
                    share=share,
                    message=f"Device {device} holds {peak.bytes:,} of"
                    f" {priced.memory_bytes_by_device[device]:,} bytes at {peak.at_s:.4g} s;"
                    f" largest parts: {', '.join(f'{name} {size:,}' for name, size in parts)}.",
                    remedy="Keep fewer micro-batches in flight, recompute activations, or move ops"
                    " away.",
                )
            )
    return found
