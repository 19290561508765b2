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
from graphplan.nouns.timeline import Timeline
from graphplan.schedule.dispatch import FLUSH
from graphplan.schedule.lower import lower_schedule
from graphplan.simulate import simulate_program

IDLE = "."


def draw_schedule(priced: PricedStages, schedule: Schedule, *, cell_s: float = 1.0) -> str:
    """The drawing of a schedule's own timeline."""
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
    """When the tasks of a schedule run."""
    return simulate_program(priced, lower_schedule(priced, schedule, policy))
