"""render_trace: a timeline in Chrome's trace event format, for Perfetto and chrome://tracing.

Tasks are called as torch.distributed.pipelining's runtime marks them (`PP:2F0`), so that a planned
and a measured trace line up. Starts and ends are rounded to whole nanoseconds before durations are
taken: neighbours still touch and never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.report.spans import KIND_NAMES, Bar, split_spans
from graphplan.report.units import clean_name

DEVICES, CHANNELS = 1, 2
"""Process numbers of the two groups of rows."""
FIRST_ROW = 1000
"""Row numbers ("threads") must differ over all processes, or Perfetto merges them; 0 means idle."""

Event = dict[str, Any]


def render_trace(plan: Plan, timeline: Timeline) -> bytes:
    """The JSON text of a trace: a row for each device and channel, memory as counters."""
    rows = split_spans(timeline)
    first_channel = FIRST_ROW + len(rows.devices)
    names = [f"GPU {d}" for d in range(len(rows.devices))]
    events = list(_name_rows(DEVICES, "Devices", FIRST_ROW, names))
    names = [clean_name(name) for name in rows.channels]
    events += _name_rows(CHANNELS, "Channels", first_channel, names)
    sent_bytes = _count_bytes(plan)
    for row, bars in enumerate(rows.devices, start=FIRST_ROW):
        events += [_draw_task(bar, row) for bar in bars]
    for row, bars in enumerate(rows.channels.values(), start=first_channel):
        events += [_draw_transfer(bar, row, sent_bytes) for bar in bars]
    events += _draw_memory(timeline)
    header = {
        "model": clean_name(plan.model.name),
        "fingerprint": clean_name(plan.model.fingerprint),
        "source": timeline.source,
    }
    return msgspec.json.encode(
        {"traceEvents": events, "displayTimeUnit": "ms", "otherData": header}
    )


def _name_rows(process: int, title: str, first: int, names: list[str]) -> Iterator[Event]:
    yield _name("process_name", process, first, {"name": title})
    yield _name("process_sort_index", process, first, {"sort_index": process})
    for row, name in enumerate(names, start=first):
        yield _name("thread_name", process, row, {"name": name})
        yield _name("thread_sort_index", process, row, {"sort_index": row})


def _name(what: str, process: int, row: int, args: Mapping[str, object]) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": dict(args)}


def _draw_task(bar: Bar, row: int) -> Event:
    args = {"task": bar.name, "stage": bar.stage, "micro_batch": bar.micro_batch}
    return _draw_bar(bar, DEVICES, row, KIND_NAMES[bar.kind], args)


def _draw_transfer(bar: Bar, row: int, sent_bytes: Mapping[tuple[int | None, int], int]) -> Event:
    if bar.source is None:
        return _draw_bar(bar, CHANNELS, row, "bucket", {"task": bar.name, "stage": bar.stage})
    args = {"transfer": bar.name, "bytes": sent_bytes.get((bar.source, bar.stage), 0)}
    return _draw_bar(bar, CHANNELS, row, "transfer", args)


def _draw_bar(bar: Bar, process: int, row: int, category: str, args: Mapping[str, object]) -> Event:
    start_ns, end_ns = round(bar.start_s * 1e9), round(bar.end_s * 1e9)
    return {
        "ph": "X",
        "name": f"PP:{bar.name}",
        "cat": category,
        "pid": process,
        "tid": row,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": dict(args),
    }


def _count_bytes(plan: Plan) -> dict[tuple[int | None, int], int]:
    """Bytes of one micro-batch by sending and receiving stage."""
    return {
        (each.src, each.dst): sum(message.bytes for message in each.messages)
        for each in plan.prices.transfers
    }


def _draw_memory(timeline: Timeline) -> Iterator[Event]:
    for device, curve in enumerate(timeline.memory):
        for at_s, used in zip(curve.times_s, curve.bytes, strict=False):
            yield {
                "ph": "C",
                "name": f"GPU {device} memory",
                "pid": DEVICES,
                "tid": FIRST_ROW + device,
                "ts": round(at_s * 1e9) / 1000,
                "args": {"bytes": used},
            }
