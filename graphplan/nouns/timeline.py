"""Timeline: the spans of a run, simulated or measured, and the memory of every device over time."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from graphplan.nouns.base import Noun

MAX_DEVICES = 1 << 20


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A task or transfer with its start and end.

    `place` is the device of a task and the channel of a transfer.
    """

    name: str
    """The instruction's text, `2F0` or `0>2F3`; that of its R for a bucket on a channel."""
    place: int | str
    start_s: float
    end_s: float


class MemoryCurve(Noun, frozen=True, kw_only=True):
    """Bytes in use on one device: `bytes[i]` from `times_s[i]` on."""

    times_s: tuple[float, ...]
    bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.bytes):
            raise ValueError(f"{len(self.times_s)} times have {len(self.bytes)} numbers of bytes")


class Peak(Noun, frozen=True, kw_only=True):
    """The largest memory of one device, when it is reached, and what makes it up."""

    bytes: int
    at_s: float
    parts: dict[str, int] = {}
    """Bytes by what holds them: `fixed`, `workspace`, or a task such as `0F3` whose activations
    are kept."""


class Timeline(Noun, frozen=True, kw_only=True, dict=True):
    """Spans ordered by start; one type for simulated and measured runs."""

    format: Literal["graphplan/timeline"] = "graphplan/timeline"
    version: Literal[1] = 1
    source: Literal["simulated", "measured"]
    batch_size: int
    num_devices: int
    spans: tuple[Span, ...]
    peaks: tuple[Peak, ...] = ()
    """By device."""
    memory: tuple[MemoryCurve, ...] = ()
    """By device; () when it was not asked for."""
    critical_path: tuple[str, ...] = ()
    """Instructions of one chain of spans without slack, first to last."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_devices <= MAX_DEVICES:
            raise ValueError(f"num_devices is {self.num_devices}, must be at most {MAX_DEVICES}")
        for each in (self.peaks, self.memory):
            if each and len(each) != self.num_devices:
                raise ValueError(f"{len(each)} peaks or curves for {self.num_devices} devices")
        for span in self.spans:
            if isinstance(span.place, int) and not 0 <= span.place < self.num_devices:
                raise ValueError(f"span {span.name!r} is on the unknown device {span.place}")

    @cached_property
    def makespan_s(self) -> float:
        """End of the last span."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def samples_per_s(self) -> float:
        """Throughput with a barrier after every batch."""
        return self.batch_size / self.makespan_s if self.makespan_s else 0.0

    @cached_property
    def busy_s_by_device(self) -> tuple[float, ...]:
        """Seconds that each device computes."""
        busy = [0.0] * self.num_devices
        for span in self.spans:
            if isinstance(span.place, int):
                busy[span.place] += span.end_s - span.start_s
        return tuple(busy)

    @cached_property
    def busy_s_by_channel(self) -> dict[str, float]:
        """Seconds that each channel carries something."""
        busy: dict[str, float] = {}
        for span in self.spans:
            if isinstance(span.place, str):
                busy[span.place] = busy.get(span.place, 0.0) + span.end_s - span.start_s
        return busy

    @cached_property
    def path_s_by_name(self) -> dict[str, float]:
        """Seconds of each instruction of the critical path: of the slowest replica, if several."""
        seconds: dict[str, float] = {}
        wanted = set(self.critical_path)
        for span in self.spans:
            is_bucket = isinstance(span.place, str) and ">" not in span.name
            if span.name in wanted and not is_bucket:
                seconds[span.name] = max(seconds.get(span.name, 0.0), span.end_s - span.start_s)
        return {name: seconds[name] for name in self.critical_path if name in seconds}

    @cached_property
    def bubble_by_device(self) -> tuple[float, ...]:
        """Idle share of each device."""
        total = self.makespan_s
        return tuple(1 - busy / total if total else 0.0 for busy in self.busy_s_by_device)

    @property
    def bubble(self) -> float:
        """Mean idle share of the devices."""
        return sum(self.bubble_by_device) / max(1, self.num_devices)
