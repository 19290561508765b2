"""draw_staleness: the steady order with the version of every read, and the delays by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphplan.nouns.task import Task
from graphplan.report.markup import draw_element, draw_text, draw_title
from graphplan.report.svg import LABEL_WIDTH, MARGIN, STYLE
from graphplan.staleness.assess import Staleness
from graphplan.staleness.versions import Stamped

CELL, ROW = 40.0, 26.0
BAR, MAX_STAGES = 18.0, 32
NUM_TICKS = 22


def draw_staleness(
    found: Staleness, ticks: Mapping[Task, int], reads: Sequence[Stamped], *, width: float = 960.0
) -> str:
    """A figure of the first ticks, each task with its micro-batch and version, over delay bars."""
    shown = found.stages[:MAX_STAGES]
    top = MARGIN + 52
    middle = top + len(shown) * ROW + 62
    height = middle + len(shown) * (BAR + 4) + 44
    parts = [
        draw_text(f"Staleness of {found.source}", MARGIN, MARGIN + 12, class_="head"),
        draw_text(_describe(found), MARGIN, MARGIN + 30, class_="quiet"),
        *_draw_order(len(shown), ticks, reads, top),
        draw_text(
            "Block updates between a read and its write: mean (dark) and largest (light)",
            MARGIN,
            middle - 14,
            class_="quiet",
        ),
        *_draw_bars(found, len(shown), middle, width - LABEL_WIDTH - 2 * MARGIN - 120),
    ]
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + draw_element(
            "svg",
            draw_title(f"Staleness of {found.source}"),
            f"<style>{STYLE}.light{{fill:#9dbdf3}}.dark{{fill:#2f6fe0}}.line{{stroke:#c2410c}}</style>",
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            width=width,
            height=height,
            viewBox=f"0 0 {width:g} {height:g}",
            role="img",
        )
        + "\n"
    )


def _describe(found: Staleness) -> str:
    return (
        f"{found.num_stages} stages, depth {found.graph.depth}, policy {found.policy.name};"
        f" largest delay {found.largest_delay} block updates,"
        f" {found.chain.largest_delay} in the chain of the same stages"
    )


def _draw_order(
    num_rows: int, ticks: Mapping[Task, int], reads: Sequence[Stamped], top: float
) -> list[str]:
    """One cell for every task of the first ticks: micro-batch, version that it reads."""
    parts = [
        draw_text(f"stage {stage}", MARGIN, top + stage * ROW + 17, class_="quiet")
        for stage in range(num_rows)
    ]
    for task, read, _ in reads:
        tick = ticks[task]
        if task.stage >= num_rows or tick >= NUM_TICKS:
            continue
        x, y = LABEL_WIDTH + tick * (CELL - 1), top + task.stage * ROW
        moved = f"+{read.distance}" if read.distance else ""
        title = draw_title(f"{task} reads version {read.version}{moved}")
        parts.append(
            draw_element(
                "g",
                title,
                draw_element("rect", class_=task.kind, x=x, y=y, width=CELL - 3, height=ROW - 4),
                draw_text(
                    f"{task.micro_batch}·v{read.version}{moved}",
                    x + CELL / 2 - 1.5,
                    y + 14.5,
                    class_="mb middle",
                ),
            )
        )
    legend = (
        "blue: forward, green: backward; micro-batch · weight version read (+ updates predicted)"
    )
    parts.append(draw_text(legend, LABEL_WIDTH, top + num_rows * ROW + 14, class_="quiet"))
    return parts


def _draw_bars(found: Staleness, num_rows: int, top: float, width: float) -> list[str]:
    """Delays of every stage's writes; a line marks the chain's largest."""
    scale = width / max(1, found.chain.largest_delay, found.largest_delay)
    parts = []
    for row, stage in enumerate(found.stages[:num_rows]):
        y = top + row * (BAR + 4)
        parts.append(draw_text(f"stage {stage.stage}", MARGIN, y + 13, class_="quiet"))
        if stage.delay is None:
            continue
        for css, value in (("light", stage.delay.largest), ("dark", stage.delay.mean)):
            size = {"x": LABEL_WIDTH, "y": y, "width": value * scale, "height": BAR}
            parts.append(draw_element("rect", class_=css, **size))
        text = f"{stage.delay.mean:.1f} / {stage.delay.largest}"
        x = LABEL_WIDTH + stage.delay.largest * scale + 6
        parts.append(draw_text(text, x, y + 13, class_="tick"))
    x = LABEL_WIDTH + found.chain.largest_delay * scale
    bottom = top + num_rows * (BAR + 4)
    parts.append(draw_element("line", class_="line", x1=x, x2=x, y1=top - 4, y2=bottom))
    text = f"chain: {found.chain.largest_delay}"
    parts.append(draw_text(text, x, bottom + 14, class_="tick middle"))
    return parts
