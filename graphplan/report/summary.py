"""render_summary: a plan on a terminal, readable at 80 columns and without colours."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.report.bars import ASCII_GLYPHS, BUSY, GLYPHS, BarRow, draw_axis, draw_bars, name_row
from graphplan.report.certainty import (
    describe_batch,
    describe_certainty,
    describe_step,
    describe_use,
    is_undecided,
)
from graphplan.report.figures import BASELINE_NAMES, COST_SOURCES, explain_missing
from graphplan.report.limits import Finding, find_limits
from graphplan.report.palette import KIND_COLOURS
from graphplan.report.spans import KIND_NAMES, Rows, split_spans
from graphplan.report.stagerows import StageRow, describe_stages
from graphplan.report.stagetext import render_graph, render_table, shorten
from graphplan.report.units import (
    clean_name,
    format_bytes,
    format_rate,
    format_seconds,
    format_share,
)
from graphplan.report.usage import measure_usage

NAMES_WIDTH = 12
"""Columns for the names of devices beside the bars."""
STYLES = {kind: f"white on {colour}" for kind, colour in KIND_COLOURS.items()}
STYLES[BUSY] = "blue"


@dataclasses.dataclass(frozen=True)
class Summary:
    """All that the terminal shows of one plan; prints itself for the console that it meets."""

    plan: Plan
    timeline: Timeline
    rows: Rows
    stages: tuple[StageRow, ...]
    findings: tuple[Finding, ...]
    graph: OpGraph | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, plain = options.max_width, options.ascii_only
        yield from _render_head(self.plan, self.stages)
        yield Text()
        yield from _render_figures(self.plan, self.stages)
        yield from _render_trust(self.plan, self.graph)
        yield Text()
        yield from _render_baselines(self.plan)
        yield _heading("Stages")
        yield from render_graph(self.plan, self.stages, width, ascii_only=plain)
        yield Text()
        yield render_table(self.stages)
        yield _heading("Timeline of one step, with the busy share of each device")
        yield from _render_bars(self, width, ascii_only=plain)
        yield _heading("What limits it")
        for finding in self.findings:
            yield from _render_finding(finding, console, width, ascii_only=plain)
        yield Text()
        yield from _render_provenance(self.plan)


def render_summary(plan: Plan, timeline: Timeline, *, graph: OpGraph | None = None) -> Summary:
    """A rich renderable; `graph` adds module names and parameters to a plan without labels."""
    rows = split_spans(timeline)
    stages = describe_stages(plan, timeline, rows, graph=graph)
    usage = measure_usage(timeline, rows)
    return Summary(plan, timeline, rows, stages, find_limits(plan, usage, stages), graph)


def render_text(
    plan: Plan, timeline: Timeline, *, graph: OpGraph | None = None, width: int = 80
) -> str:
    """The summary as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(render_summary(plan, timeline, graph=graph))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _render_head(plan: Plan, stages: Sequence[StageRow]) -> Iterator[Text]:
    counts: dict[str, int] = {}
    for device in plan.cluster.devices:
        counts[device.type.name] = counts.get(device.type.name, 0) + 1
    park = " + ".join(f"{count} x {clean_name(name)}" for name, count in counts.items())
    yield Text.assemble(
        (clean_name(plan.model.name), "bold"), f" on {park} ({clean_name(plan.cluster.name)})"
    )
    sizes = sorted({row.micro_batch_size for row in stages})
    yield Text(
        f"{describe_batch(plan, sizes)},"
        f" {plan.training.optimizer}, {'mixed ' if plan.training.mixed else ''}"
        f"{plan.training.precision}, schedule {clean_name(plan.provenance.schedule)},"
        f" weights {plan.policy.name}",
        style="dim",
    )


def _render_figures(plan: Plan, stages: Sequence[StageRow]) -> Iterator[Text]:
    """Two columns of figures: what the plan does, and how good that is."""
    predicted = plan.prediction
    fullest = max(stages, key=lambda row: row.peak_bytes / max(1, row.limit_bytes), default=None)
    memory = "-"
    if fullest is not None:
        share = fullest.peak_bytes / max(1, fullest.limit_bytes)
        memory = f"{format_bytes(fullest.peak_bytes)} ({format_share(share)} of the limit)"
    figures = (
        ("step time", format_seconds(predicted.step_s)),
        ("lower bound", format_seconds(plan.bound.step_s)),
        ("throughput", f"{format_rate(predicted.samples_per_s)} samples/s"),
        ("gap", f"at most {format_share(plan.gap)}"),
        ("bubble", format_share(predicted.bubble)),
        ("peak memory", memory),
    )
    cells = [(Text(name), Text(value, style="bold")) for name, value in figures]
    return _align([(*a, *b) for a, b in zip(cells[::2], cells[1::2], strict=True)])


def _render_trust(plan: Plan, graph: OpGraph | None) -> Iterator[Text]:
    """What the step time rests on, and what it uses of the devices."""
    told, used = describe_step(plan), describe_use(plan, graph)
    if told:
        yield Text(f"predicted {format_seconds(plan.prediction.step_s)}, {told}")
    if used:
        yield Text(used)


def _render_baselines(plan: Plan) -> Iterator[Text]:
    """Other planners on the same problem, with the speed-up over each."""
    others = sorted(set(plan.baselines) - set(BASELINE_NAMES))
    titles = BASELINE_NAMES | {name: clean_name(name) for name in others}
    return _align(
        [
            (Text(f"over {title}"), *_compare(plan, plan.baselines.get(name)))
            for name, title in titles.items()
        ]
    )


def _align(rows: Sequence[Sequence[Text]]) -> Iterator[Text]:
    """Lines with their cells below each other, without blanks at the end."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        line = Text()
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * (width - cell.cell_len + 3))
        yield line.append_text(row[-1])


def _compare(plan: Plan, other_s: float | None) -> tuple[Text, Text]:
    if other_s is None:
        return Text("-", style="dim"), Text(explain_missing(plan), style="dim")
    ratio = other_s / plan.prediction.step_s if plan.prediction.step_s else 1.0
    style = "bold green" if ratio >= 1.005 else "bold red" if ratio < 0.995 else "bold"
    told = "; undecided: within the expected error" if is_undecided(plan, ratio) else ""
    taken = f"its step takes {format_seconds(other_s)}{told}"
    return Text(f"{ratio:.2f}x", style=style), Text(taken)


def _render_bars(summary: Summary, width: int, *, ascii_only: bool) -> Iterator[Text]:
    makespan_s = summary.timeline.makespan_s
    cells = max(20, width - NAMES_WIDTH - 6)
    rows = draw_bars(summary.rows.devices, makespan_s, width=cells, ascii_only=ascii_only)
    names = [shorten(name_row(row.devices), NAMES_WIDTH - 1) for row in rows]
    for row, name in zip(rows, names, strict=True):
        line = Text(f"{name:<{NAMES_WIDTH}}", style="green")
        for cell in row.cells:
            line.append(cell.text, style=STYLES[cell.kind] if cell.kind else "default")
        line.append(f" {row.busy:>4.0%}", style="default")
        yield line
    yield Text(" " * NAMES_WIDTH + draw_axis(makespan_s, width=cells), style="dim")
    yield _render_legend(rows, ascii_only=ascii_only)


def _render_legend(rows: Sequence[BarRow], *, ascii_only: bool) -> Text:
    used = {cell.kind for row in rows for cell in row.cells if cell.kind}
    glyphs = ASCII_GLYPHS if ascii_only else GLYPHS
    legend = Text(" " * NAMES_WIDTH)
    for kind in KIND_NAMES:
        if kind in used:
            legend.append(glyphs[kind], style=STYLES[kind])
            legend.append(f" {KIND_NAMES[kind]}  ", style="dim")
    if BUSY in used:
        legend.append("several devices a line; the darker, the more of them compute", style="dim")
    legend.rstrip()
    return legend


def _render_finding(
    finding: Finding, console: Console, width: int, *, ascii_only: bool
) -> Iterator[Text]:
    """A bullet; the lines that follow are indented."""
    lines = Text(finding.text, style="dim").wrap(console, max(20, width - 2))
    bullet = "- " if ascii_only else "• "
    yield Text.assemble((bullet, "cyan"), (f"{finding.title}.", "bold"))
    for line in lines:
        line.rstrip()
        yield Text.assemble("  ", line)


def _render_provenance(plan: Plan) -> Iterator[Text]:
    made = plan.provenance
    source = COST_SOURCES.get(made.costs, clean_name(made.costs))
    yield Text(f"costs: {source}", style="dim")
    for line in describe_certainty(plan):
        yield Text(line, style="dim")
    yield Text(
        f"made by graphplan {clean_name(made.graphplan)}, planner {clean_name(made.planner)},"
        f" seed {made.seed}; model {clean_name(plan.model.fingerprint)}",
        style="dim",
    )
