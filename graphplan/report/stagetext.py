"""The stages of a plan as text: the graph with a line for each stage, and the table of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from graphplan.nouns.plan import Plan
from graphplan.report.lanes import LaneRow, draw_lanes, to_ascii
from graphplan.report.stagerows import StageRow
from graphplan.report.units import format_bytes, format_count, format_devices, format_ms

MAX_STAGES = 48
"""Stages listed before the middle is left out."""
MAX_LANES = 20
"""Parallel lines beyond which the drawing gives way to lists of inputs."""
TIGHT_SHARE = 0.9


class Elision(NamedTuple):
    """Which stages of many are shown: those before `stop` and those from `resume` on."""

    stop: int
    resume: int

    def shows(self, stage: int) -> bool:
        """Whether a stage is shown."""
        return stage < self.stop or stage >= self.resume


def choose_shown(num_stages: int) -> Elision:
    """All stages, or the first and the last of very many."""
    if num_stages <= MAX_STAGES:
        return Elision(num_stages, num_stages)
    return Elision(MAX_STAGES // 2, num_stages - MAX_STAGES // 2)


def render_graph(
    plan: Plan, stages: Sequence[StageRow], width: int, *, ascii_only: bool
) -> Iterator[Text]:
    """The stage graph: lanes, or lists of inputs where the lanes do not fit or some are hidden."""
    shown = choose_shown(len(stages))
    rows = draw_lanes(plan.stages.predecessors, plan.stages.successors)
    lane_width = max((len(row.text) for row in rows), default=0)
    if lane_width > 2 * MAX_LANES or shown.stop < shown.resume:
        rows = [LaneRow("", stage, 0) for stage in range(len(stages))]
        lane_width = 0
    for row in rows:
        if row.stage is not None and row.stage == shown.stop:
            yield Text(f"… {shown.resume - shown.stop} more stages …", style="dim")
        if row.stage is not None and not shown.shows(row.stage):
            continue
        text = f"{row.text:<{lane_width}}  " if lane_width else ""
        line = Text(to_ascii(text) if ascii_only else text, style="cyan")
        if row.stage is not None:
            inputs = plan.stages.predecessors[row.stage] if not lane_width else ()
            line.append_text(_tell_stage(stages[row.stage], inputs, width - len(text), len(stages)))
        line.rstrip()
        yield line


def _tell_stage(stage: StageRow, inputs: Sequence[int], width: int, num_stages: int) -> Text:
    """Number, name, devices, and the inputs when no lanes show them."""
    digits = len(str(num_stages))
    after = f" after {', '.join(map(str, inputs))}" if inputs else ""
    where = shorten(format_devices(stage.devices) + after, max(8, width // 2))
    room = max(8, width - digits - len(where) - 4)
    return Text.assemble(
        (f"{stage.stage:>{digits}}  ", "bold default"),
        (f"{shorten(stage.title, room):<{room}}  ", "default"),
        (where, "green"),
    )


def render_table(stages: Sequence[StageRow]) -> Table:
    """One line of figures for each stage."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("stage", "ops", "params", "devices", "fwd ms", "bwd ms", "in flight"):
        table.add_column(head, justify="left" if head == "devices" else "right", no_wrap=True)
    table.add_column("memory / limit", justify="right", no_wrap=True)
    shown = choose_shown(len(stages))
    for row in stages:
        if row.stage == shown.stop:
            table.add_row("…", *[""] * 7)
        if shown.shows(row.stage):
            table.add_row(*_table_cells(row))
    notes = ["* recomputes its activations"] if any(row.recompute for row in stages) else []
    notes += [
        f"{'°' * zero} replicas share {what} (ZeRO-{zero})"
        for zero, what in SHARED_BY_LEVEL.items()
        if any(row.zero == zero for row in stages)
    ]
    if notes:
        table.caption = Text("; ".join(notes), style="dim")
        table.caption_justify = "left"
    return table


SHARED_BY_LEVEL = {
    1: "optimizer states",
    2: "optimizer states and gradients",
    3: "optimizer states, gradients and weights",
}


def _table_cells(row: StageRow) -> list[Text]:
    share = row.peak_bytes / max(1, row.limit_bytes)
    style = "bold red" if share > 1 else "yellow" if share >= TIGHT_SHARE else "default"
    return [
        Text(str(row.stage), style="bold"),
        Text(f"{row.num_ops:,}"),
        Text("-" if row.num_parameters is None else format_count(row.num_parameters)),
        Text(shorten(format_devices(row.devices), 16) + "°" * row.zero, style="green"),
        Text(format_ms(row.forward_s)),
        Text(format_ms(row.backward_s) + ("*" if row.recompute else "")),
        Text(str(row.in_flight)),
        Text(
            f"{format_bytes(row.peak_bytes)} / {format_bytes(row.limit_bytes)} {share:>4.0%}",
            style=style,
        ),
    ]


def shorten(text: str, width: int) -> str:
    """The text cut to a width, with an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
