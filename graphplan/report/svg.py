"""render_svg: stage graph and timeline as one vector figure for papers and READMEs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.report.bars import group_replicas, name_row
from graphplan.report.graphsvg import Drawing, draw_graph
from graphplan.report.markup import draw_element, draw_text, draw_title, join_boxes
from graphplan.report.palette import KIND_COLOURS
from graphplan.report.spans import KIND_NAMES, Bar, split_spans
from graphplan.report.stagerows import describe_stages
from graphplan.report.stagetext import shorten
from graphplan.report.units import choose_ticks, format_rate, format_seconds, format_share

Part = Literal["both", "graph", "timeline"]

MARGIN, LABEL_WIDTH, ROW_HEIGHT, ROW_GAP = 16.0, 84.0, 22.0, 4.0
NUMBER_WIDTH = 6.2
"""Pixels that a digit of a micro-batch number needs."""

STYLE = """
text{font-family:Helvetica,Arial,sans-serif;fill:#1c2430;font-size:12px}
.middle{text-anchor:middle}.end{text-anchor:end}
.head{font-size:15px;font-weight:700}.quiet,.place,.times,.tick{fill:#5b6675;font-size:11px}
.number{font-weight:700;font-size:13px}.name{font-size:12px}
.card{fill:#fff;stroke:#c3ccd8}.wire{fill:none;stroke:#9aa7b8}
.track{fill:#e3e8ef}.fill{fill:#2f6fe0}.fill.tight{fill:#c2410c}
.row{fill:#f1f4f8}.grid{stroke:#d5dce5;stroke-width:1}.mb{fill:#fff;font-size:10px}
""" + "".join(f".{kind}{{fill:{colour}}}" for kind, colour in KIND_COLOURS.items())


def render_svg(
    plan: Plan,
    timeline: Timeline,
    *,
    graph: OpGraph | None = None,
    part: Part = "both",
    width: float = 960.0,
) -> str:
    """A figure `width` pixels wide; wider stage graphs are scaled to fit."""
    rows = split_spans(timeline)
    stages = describe_stages(plan, timeline, rows, graph=graph)
    y = MARGIN
    parts = [_draw_head(plan, y)]
    y += 48
    if part != "timeline":
        drawing = draw_graph(plan, stages)
        scale = min(1.0, (width - 2 * MARGIN) / max(1.0, drawing.width))
        parts.append(_place(drawing, MARGIN, y, scale))
        y += drawing.height * scale + 28
    if part != "graph":
        drawing = draw_timeline(rows.devices, timeline.makespan_s, width - 2 * MARGIN)
        parts.append(_place(drawing, MARGIN, y, 1.0))
        y += drawing.height + MARGIN
    height = y
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + draw_element(
            "svg",
            draw_title(f"Pipeline plan of {plan.model.name}"),
            f"<style>{STYLE}</style>",
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            width=width,
            height=height,
            viewBox=f"0 0 {width:g} {height:g}",
            role="img",
        )
        + "\n"
    )


def draw_timeline(devices: Sequence[Sequence[Bar]], makespan_s: float, width: float) -> Drawing:
    """Rows of tasks with micro-batch numbers where they fit, a time axis and a legend."""
    groups = group_replicas(devices)
    height = ROW_HEIGHT if len(groups) <= 32 else 8.0
    gap = ROW_GAP if len(groups) <= 32 else 1.0
    scale = (width - LABEL_WIDTH) / makespan_s if makespan_s else 0.0
    bottom = len(groups) * (height + gap)
    parts = [_draw_axis(makespan_s, scale, bottom)]
    size = {"width": width - LABEL_WIDTH, "height": height, "scale": scale}
    parts += [
        _draw_row(devices[group[0]], group, i * (height + gap), **size)
        for i, group in enumerate(groups)
    ]
    used = [kind for kind in KIND_NAMES if any(b.kind == kind for bars in devices for b in bars)]
    parts.append(_draw_legend(used, bottom + 36))
    return Drawing("".join(parts), width, bottom + 46)


def _draw_row(
    bars: Sequence[Bar],
    group: tuple[int, ...],
    y: float,
    *,
    width: float,
    height: float,
    scale: float,
) -> str:
    """One path for each kind: thousands of tasks stay a small file."""
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    numbers = []
    digits = max((len(str(bar.micro_batch)) for bar in bars), default=1)
    for bar in bars:
        x, w = LABEL_WIDTH + bar.start_s * scale, (bar.end_s - bar.start_s) * scale
        shown = max(w - 0.6, 0.4 * w)
        boxes.setdefault(bar.kind, []).append((x, y, shown, height))
        if height > 12 and bar.kind in "FBIW" and w >= NUMBER_WIDTH * digits + 3:
            text = str(bar.micro_batch)
            numbers.append(draw_text(text, x + shown / 2, y + height / 2 + 3.5, class_="mb middle"))
    name = shorten(name_row(group), 13)
    return "".join(
        (
            draw_text(name, LABEL_WIDTH - 8, y + height / 2 + 4, class_="end quiet"),
            draw_element("rect", class_="row", x=LABEL_WIDTH, y=y, width=width, height=height),
            *(
                draw_element("path", class_=kind, d=join_boxes(found))
                for kind, found in boxes.items()
            ),
            *numbers,
        )
    )


def _draw_axis(makespan_s: float, scale: float, bottom: float) -> str:
    parts = []
    for seconds in choose_ticks(makespan_s, 8):
        x = LABEL_WIDTH + seconds * scale
        text = format_seconds(seconds, digits=3)
        parts.append(draw_element("line", class_="grid", x1=x, x2=x, y1=0, y2=bottom + 4))
        parts.append(draw_text(text, x, bottom + 17, class_="tick middle"))
    return "".join(parts)


def _draw_legend(kinds: Sequence[str], y: float) -> str:
    parts = []
    x = LABEL_WIDTH
    for kind in kinds:
        parts.append(draw_element("rect", class_=kind, x=x, y=y - 9, width=10, height=10, rx=2))
        parts.append(draw_text(KIND_NAMES[kind], x + 15, y, class_="quiet"))
        x += 36 + 6 * len(KIND_NAMES[kind])
    return "".join(parts)


def _draw_head(plan: Plan, y: float) -> str:
    park = f"{len(plan.cluster.devices)} x {plan.cluster.devices[0].type.name}"
    figures = (
        f"step {format_seconds(plan.prediction.step_s)},"
        f" {format_rate(plan.prediction.samples_per_s)} samples/s,"
        f" bubble {format_share(plan.prediction.bubble)},"
        f" at most {format_share(plan.gap)} above the lower bound"
    )
    return draw_text(f"{plan.model.name} on {park}", MARGIN, y + 12, class_="head") + draw_text(
        figures, MARGIN, y + 30, class_="quiet"
    )


def _place(drawing: Drawing, x: float, y: float, scale: float) -> str:
    return draw_element(
        "g", drawing.elements, transform=f"translate({x:g} {y:g}) scale({scale:.4g})"
    )
