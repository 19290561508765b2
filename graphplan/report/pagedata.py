"""collect_page_data: what the page's scripts draw, as compact JSON that is safe inside a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.report.palette import KIND_COLOURS, TRANSFER_COLOURS
from graphplan.report.spans import KIND_NAMES, Bar, Rows
from graphplan.report.stagerows import StageRow
from graphplan.report.units import clean_name, format_channel

_UNSAFE = ("<", ">", "&", "\u2028", "\u2029")


def collect_page_data(
    plan: Plan, timeline: Timeline, rows: Rows, stages: Sequence[StageRow]
) -> dict[str, Any]:
    """Rows of spans by column, memory curves, and the figures that tooltips show."""
    critical = frozenset(timeline.critical_path)
    return {
        "makespan_s": timeline.makespan_s,
        "kind_names": KIND_NAMES,
        "kind_colours": KIND_COLOURS,
        "transfer_colours": TRANSFER_COLOURS,
        "stages": [
            {
                "title": row.title,
                "devices": row.devices,
                "saved_bytes": price.saved_bytes,
                "workspace_bytes": price.workspace_bytes,
            }
            for row, price in zip(stages, plan.prices.stages, strict=True)
        ],
        "transfers": [
            {
                "src": each.src,
                "dst": each.dst,
                "bytes": sum(message.bytes for message in each.messages),
            }
            for each in plan.prices.transfers
        ],
        "devices": [_pack_row(f"GPU {d}", bars, critical) for d, bars in enumerate(rows.devices)],
        "channels": [
            _pack_row(format_channel(name), bars, critical) for name, bars in rows.channels.items()
        ],
        "memory": [
            {"times": [round(t, 9) for t in curve.times_s], "bytes": curve.bytes}
            for curve in timeline.memory
        ],
        "limits": plan.prices.memory_bytes_by_device,
        "peaks": [
            {"bytes": peak.bytes, "at": peak.at_s, "parts": _largest_parts(peak.parts)}
            for peak in timeline.peaks
        ],
    }


def escape_json(value: object) -> str:
    """JSON that may stand in a script element: no `</script>`, no comment, no line separator."""
    text = msgspec.json.encode(value).decode()
    for letter in _UNSAFE:
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _pack_row(name: str, bars: Sequence[Bar], critical: frozenset[str]) -> dict[str, Any]:
    """A row by column: a few numbers for each span instead of an object."""
    return {
        "name": name,
        "start": [round(bar.start_s, 9) for bar in bars],
        "end": [round(bar.end_s, 9) for bar in bars],
        "kind": "".join(bar.kind for bar in bars),
        "stage": [bar.stage for bar in bars],
        "source": [bar.source for bar in bars] if any(b.source is not None for b in bars) else [],
        "batch": [bar.micro_batch for bar in bars],
        "critical": [i for i, bar in enumerate(bars) if bar.name in critical],
    }


def _largest_parts(parts: dict[str, int], most: int = 4) -> list[tuple[str, int]]:
    """What fills a device at its peak: activations by stage, the largest first."""
    grouped: dict[str, int] = {}
    for name, size in parts.items():
        stage = name.partition("F")[0]
        key = f"activations of stage {stage}" if stage.isdecimal() else clean_name(name)
        grouped[key] = grouped.get(key, 0) + size
    return sorted(grouped.items(), key=lambda part: -part[1])[:most]
