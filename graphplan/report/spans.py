"""split_spans: the spans of a timeline by row, parsed, as all pictures need them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from graphplan.errors import InvalidFile
from graphplan.nouns.timeline import Timeline

_NAME = re.compile(r"(?:([0-9]{1,9})>)?([0-9]{1,9})([FBIWRU])([0-9]{1,9})")

MAX_SECONDS = 1e9
"""Thirty years: no step takes longer."""

KIND_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "all-reduce",
    "U": "update",
}


class Bar(NamedTuple):
    """One span of a row; `source` is the sending stage of a transfer, None for a task."""

    start_s: float
    end_s: float
    source: int | None
    stage: int
    kind: str
    micro_batch: int

    @property
    def name(self) -> str:
        """The instruction's text."""
        sender = "" if self.source is None else f"{self.source}>"
        return f"{sender}{self.stage}{self.kind}{self.micro_batch}"


class Rows(NamedTuple):
    """Bars by device and by channel, ordered by start."""

    devices: tuple[tuple[Bar, ...], ...]
    channels: dict[str, tuple[Bar, ...]]


def split_spans(timeline: Timeline) -> Rows:
    """Sort the spans into rows; names that are no instructions and absurd times are errors."""
    devices: list[list[Bar]] = [[] for _ in range(timeline.num_devices)]
    channels: dict[str, list[Bar]] = {}
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        match = _NAME.fullmatch(span.name)
        if match is None:
            raise InvalidFile(
                f"The timeline has a span called {span.name!r}, which is no task or transfer.",
                remedy="Spans are called as in a program: 2F0 or 0>2F3.",
            )
        if not 0 <= span.start_s <= span.end_s <= MAX_SECONDS:
            raise InvalidFile(
                f"{span.name} runs from {span.start_s} s to {span.end_s} s, which cannot be drawn.",
                remedy="`graphplan check plan.json` tells what is wrong with the prices.",
            )
        source = None if match[1] is None else int(match[1])
        bar = Bar(span.start_s, span.end_s, source, int(match[2]), match[3], int(match[4]))
        if isinstance(span.place, str):
            channels.setdefault(span.place, []).append(bar)
        elif 0 <= span.place < len(devices):
            devices[span.place].append(bar)
    ordered = sorted(channels, key=_natural_key)
    return Rows(tuple(map(tuple, devices)), {name: tuple(channels[name]) for name in ordered})


def _natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """`d2>d10` after `d2>d9`."""
    parts: Sequence[str] = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
