"""measure_usage: where the time of every device and channel goes."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.base import Noun
from graphplan.nouns.task import Task, Transfer, parse_instruction
from graphplan.nouns.timeline import Timeline
from graphplan.report.spans import KIND_NAMES, Bar, Rows

UPDATE_KINDS = ("R", "U")
"""Kinds of tasks that compute neither forward nor backward."""


class DeviceUse(Noun, frozen=True, kw_only=True):
    """Seconds of one device; busy, warm-up, waiting and drain add up to the makespan."""

    device: int
    busy_s_by_kind: dict[str, float]
    warmup_s: float
    """Before its first task."""
    waiting_s: float
    """Between two tasks."""
    drain_s: float
    """After its last task."""

    @property
    def busy_s(self) -> float:
        """Seconds with a task."""
        return sum(self.busy_s_by_kind.values())


class PathShare(Noun, frozen=True, kw_only=True):
    """Part of the critical path: a stage, its all-reduce or update, transfers, or latency."""

    what: str
    stage: int | None
    seconds: float


class Usage(Noun, frozen=True, kw_only=True):
    """All devices, the seconds that each channel is occupied, and the critical path."""

    makespan_s: float
    devices: tuple[DeviceUse, ...]
    occupied_s_by_channel: dict[str, float]
    path: tuple[PathShare, ...]
    """Largest first; adds up to the makespan; () when the timeline has no critical path."""


def measure_usage(timeline: Timeline, rows: Rows) -> Usage:
    """Add up the spans of a timeline."""
    total_s = timeline.makespan_s
    return Usage(
        makespan_s=total_s,
        devices=tuple(_use_device(d, bars, total_s) for d, bars in enumerate(rows.devices)),
        occupied_s_by_channel={name: timeline.busy_s_by_channel[name] for name in rows.channels},
        path=_share_path(timeline),
    )


def _use_device(device: int, bars: Sequence[Bar], makespan_s: float) -> DeviceUse:
    busy_s = dict.fromkeys(KIND_NAMES, 0.0)
    for bar in bars:
        busy_s[bar.kind] += bar.end_s - bar.start_s
    first_s = bars[0].start_s if bars else makespan_s
    last_s = max((bar.end_s for bar in bars), default=makespan_s)
    return DeviceUse(
        device=device,
        busy_s_by_kind={kind: seconds for kind, seconds in busy_s.items() if seconds},
        warmup_s=first_s,
        waiting_s=max(0.0, last_s - first_s - sum(busy_s.values())),
        drain_s=max(0.0, makespan_s - last_s),
    )


def _share_path(timeline: Timeline) -> tuple[PathShare, ...]:
    """Seconds of the critical path by what fills it; what no span covers is latency and waiting."""
    if not timeline.critical_path:
        return ()
    seconds_by_part: dict[tuple[str, int | None], float] = {}
    for name, seconds in timeline.path_s_by_name.items():
        key = _name_part(parse_instruction(name))
        seconds_by_part[key] = seconds_by_part.get(key, 0.0) + seconds
    shares = [
        PathShare(what=what, stage=stage, seconds=seconds)
        for (what, stage), seconds in seconds_by_part.items()
    ]
    rest_s = timeline.makespan_s - sum(seconds_by_part.values())
    if rest_s > 1e-9 * timeline.makespan_s:
        shares.append(PathShare(what="latency", stage=None, seconds=rest_s))
    return tuple(sorted(shares, key=lambda share: -share.seconds))


def _name_part(each: Task | Transfer) -> tuple[str, int | None]:
    """What an instruction of the critical path counts as, and its stage."""
    if not isinstance(each, Task):
        return "transfers", None
    of = f"{KIND_NAMES[each.kind]} of " if each.kind in UPDATE_KINDS else ""
    return f"{of}stage {each.stage}", each.stage
