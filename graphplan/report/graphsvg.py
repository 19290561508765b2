"""draw_graph: the stage graph as SVG elements; colours come from classes, so pages can theme it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from graphplan.nouns.plan import Plan
from graphplan.report.layout import Layout, Node, Wire, layout_graph
from graphplan.report.markup import draw_element, draw_text, draw_title
from graphplan.report.stagerows import StageRow
from graphplan.report.stagetext import shorten
from graphplan.report.units import format_bytes, format_devices, format_seconds, format_share

WIDE_COLUMNS = 10
"""Layers beyond which the stages shrink to their numbers."""


class Card(NamedTuple):
    """Size of a stage and the space around it."""

    width: float
    height: float
    gap_x: float
    gap_y: float
    full: bool


FULL_CARD = Card(186, 76, 64, 20, True)
SMALL_CARD = Card(74, 42, 34, 12, False)


class Drawing(NamedTuple):
    """SVG elements and the size that they need."""

    elements: str
    width: float
    height: float


def draw_graph(plan: Plan, stages: Sequence[StageRow]) -> Drawing:
    """Cards for stages, curves for what flows between them."""
    ends = sorted({(edge.src, edge.dst) for edge in plan.stages.edges} | set(plan.prices.edges))
    layout = layout_graph(len(stages), ends)
    card = FULL_CARD if layout.num_columns <= WIDE_COLUMNS else SMALL_CARD
    wires = "".join(_draw_wire(wire, card, plan) for wire in layout.wires)
    cards = "".join(
        _draw_card(row, node, card) for row, node in zip(stages, layout.nodes, strict=True)
    )
    return Drawing(wires + cards, *_measure(layout, card))


def edge_bytes(plan: Plan, src: int, dst: int) -> int:
    """Bytes of one micro-batch from one stage to another."""
    size = plan.stages.stages[src].micro_batch_size
    edges = plan.stages.edges_by_ends.get((src, dst), ())
    return sum(edge.spec.num_bytes(size) for edge in edges)


def _measure(layout: Layout, card: Card) -> tuple[float, float]:
    width = layout.num_columns * (card.width + card.gap_x) - card.gap_x + 4
    return max(width, 0.0), max(layout.num_rows * (card.height + card.gap_y) - card.gap_y + 4, 0.0)


def _corner(node: Node, card: Card) -> tuple[float, float]:
    """Upper left corner of a card."""
    return 2 + node.column * (card.width + card.gap_x), 2 + node.row * (card.height + card.gap_y)


def _draw_wire(wire: Wire, card: Card, plan: Plan) -> str:
    """A curve through the points of an edge, thicker the more bytes it carries."""
    num_bytes = edge_bytes(plan, wire.src, wire.dst)
    corners = [_corner(point, card) for point in wire.points]
    x, y = corners[0][0] + card.width, corners[0][1] + card.height / 2
    path = f"M{x:.1f} {y:.1f}"
    for i, (left, top) in enumerate(corners[1:], start=1):
        middle = top + card.height / 2
        bend = card.gap_x / 2
        path += f"C{x + bend:.1f} {y:.1f} {left - bend:.1f} {middle:.1f} {left:.1f} {middle:.1f}"
        if i < len(corners) - 1:
            path += f"H{left + card.width:.1f}"
            left += card.width
        x, y = left, middle
    thickness = min(6.0, 1.2 + 0.6 * math.log2(1 + min(num_bytes, 1 << 60) / (1 << 20)))
    values = ", ".join(
        f"{edge.value} {edge.spec}"
        for edge in plan.stages.edges_by_ends.get((wire.src, wire.dst), ())[:4]
    )
    title = f"{wire.src} to {wire.dst}: {format_bytes(num_bytes)} a micro-batch\n{values}"
    return draw_element(
        "path",
        draw_title(title),
        d=path,
        class_="wire",
        stroke_width=thickness,
        data_src=wire.src,
        data_dst=wire.dst,
    )


def _draw_card(row: StageRow, node: Node, card: Card) -> str:
    """A stage: number and name, devices, times, and a bar of its memory against the limit."""
    x, y = _corner(node, card)
    share = row.peak_bytes / max(1, row.limit_bytes)
    parts = [
        draw_title(describe_row(row)),
        draw_element("rect", class_="card", x=x, y=y, width=card.width, height=card.height, rx=8),
    ]
    if card.full:
        devices = format_devices(row.devices)
        times = f"{format_seconds(row.forward_s)} + {format_seconds(row.backward_s)}"
        parts += [
            draw_text(str(row.stage), x + 12, y + 22, class_="number"),
            draw_text(
                shorten(row.title, 21 - len(str(row.stage))),
                x + 20 + 8 * len(str(row.stage)),
                y + 22,
                class_="name",
            ),
            draw_text(shorten(devices, 26), x + 12, y + 41, class_="place"),
            draw_text(times, x + 12, y + 58, class_="times"),
        ]
        bar = (x + 12, y + card.height - 9, card.width - 24)
    else:
        parts += [
            draw_text(str(row.stage), x + card.width / 2, y + 17, class_="number middle"),
            draw_text(
                shorten(format_devices(row.devices), 11),
                x + card.width / 2,
                y + 31,
                class_="place middle",
            ),
        ]
        bar = (x + 8, y + card.height - 6, card.width - 16)
    filled = max(0.0, min(1.0, share)) * bar[2]
    tight = " tight" if share > 0.9 else ""
    parts += [
        draw_element("rect", class_="track", x=bar[0], y=bar[1], width=bar[2], height=3, rx=1.5),
        draw_element(
            "rect", class_=f"fill{tight}", x=bar[0], y=bar[1], width=filled, height=3, rx=1.5
        ),
    ]
    return draw_element("g", *parts, class_="stage", data_stage=row.stage, tabindex=0, role="img")


def describe_row(row: StageRow) -> str:
    """A stage in a few lines."""
    share = row.peak_bytes / max(1, row.limit_bytes)
    return "\n".join(
        (
            f"Stage {row.stage}: {row.title}",
            f"{row.num_ops:,} ops on {format_devices(row.devices)}",
            f"forward {format_seconds(row.forward_s)}, backward {format_seconds(row.backward_s)}"
            f" for {row.micro_batch_size} samples",
            f"memory {format_bytes(row.peak_bytes)} of {format_bytes(row.limit_bytes)}"
            f" ({format_share(share)}), {row.in_flight} in flight",
        )
    )
