"""Drawings of a timeline in plain text: one line for each device, time from left to right.

`draw_timeline` has cells of fixed width with the task's text, for tests and small schedules:

    0 |0F0 0F1 .   .   0B0 0B1 |
    1 |.   1F0 1B0 1F1 1B1 .   |

`sketch_timeline` has one letter a column, for terminals:

    0 |FF..BB|
    1 |.FBFB.|
"""

from __future__ import annotations

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import parse_task
from graphplan.nouns.timeline import Span, Timeline
from graphplan.schedule.evaluate import FLUSH, close_orders, durations_of, run_schedule
from graphplan.schedule.shop import U, make_shop, number_tasks
from graphplan.schedule.updates import list_updates

IDLE = "."


def draw_schedule(priced: PricedStages, schedule: Schedule, *, cell_s: float = 1.0) -> str:
    """The drawing of a schedule's own timeline, without contention."""
    return draw_timeline(time_schedule(priced, schedule), cell_s=cell_s)


def draw_timeline(timeline: Timeline, *, cell_s: float = 1.0) -> str:
    """Tasks in cells of `cell_s` seconds; a longer task is filled up with `=`."""
    num_cells = round(timeline.makespan_s / cell_s)
    if num_cells > 10_000:
        raise InvalidOption(
            f"A drawing of {num_cells:,} cells is too long to read.",
            remedy=f"Choose cell_s of at least {timeline.makespan_s / 10_000:.3g}.",
        )
    width = 1 + max((len(s.name) for s in timeline.spans if isinstance(s.place, int)), default=1)
    lines = []
    for device in range(timeline.num_devices):
        cells = [IDLE.ljust(width)] * num_cells
        for span in timeline.spans:
            first, last = round(span.start_s / cell_s), round(span.end_s / cell_s)
            if span.place == device and last > first:
                text = span.name.ljust(width * (last - first) - 1, "=") + " "
                cells[first:last] = [text, *[""] * (last - first - 1)]
        lines.append("".join(cells))
    return label_lines(lines)


def sketch_timeline(timeline: Timeline, *, num_columns: int = 80) -> str:
    """The kind of the task in the middle of each of `num_columns` equal parts of the time."""
    step = timeline.makespan_s / num_columns
    lines = []
    for device in range(timeline.num_devices):
        columns = [IDLE] * num_columns
        for span in timeline.spans:
            if span.place == device and step:
                first, last = round(span.start_s / step), round(span.end_s / step)
                columns[first:last] = parse_task(span.name).kind * (last - first)
        lines.append("".join(columns))
    return label_lines(lines)


def label_lines(lines: list[str]) -> str:
    """The lines with their device numbers in front."""
    width = len(str(len(lines) - 1))
    return "\n".join(f"{device:>{width}} |{line}|" for device, line in enumerate(lines))


def time_schedule(
    priced: PricedStages, schedule: Schedule, policy: WeightPolicy = FLUSH
) -> Timeline:
    """When the tasks of a schedule run if messages never wait for one another."""
    shop = make_shop(priced)
    orders = close_orders(shop, number_tasks(shop, schedule), policy)
    durations = durations_of(shop, schedule)
    ends = run_schedule(shop, orders, durations, name=schedule.name).ends
    spans = []
    for devices, order in zip(shop.devices_by_machine, orders, strict=True):
        tasks = iter(schedule.tasks_by_device[devices[0]])
        for number in order:
            stage, row, m = shop.place_of(number)
            task = list_updates(priced, stage, m, policy)[-1] if row == U else next(tasks)
            start, end = ends[number] - durations[number], ends[number]
            spans += [Span(str(task), device, start, end) for device in devices]
    return Timeline(
        source="simulated",
        batch_size=priced.batch_size,
        num_devices=len(priced.memory_bytes_by_device),
        spans=tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s, span.place))),
    )
