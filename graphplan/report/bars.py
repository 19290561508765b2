"""draw_bars: a timeline as text that fits a terminal, one line for each group of devices.

When tasks are wide enough each shows its micro-batch (`3░░░`); otherwise a cell shows the kind that
fills most of it. Replicas, which do the same at the same time, share a line. Beyond `max_rows`
lines, neighbours are merged and a cell shows how busy they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphplan.report.spans import Bar
from graphplan.report.units import choose_ticks, format_ranges, format_seconds

GLYPHS = {"F": "░", "B": "▓", "I": "▒", "W": "█", "R": "≡", "U": "="}
ASCII_GLYPHS = {"F": "-", "B": "#", "I": "+", "W": "%", "R": "r", "U": "="}
SHADES = " ░▒▓█"
ASCII_SHADES = " .-+#"
BUSY = "busy"
"""Stands in for a kind where several devices share a cell."""
NUMBERED_CELLS = 2.5
"""Mean width of a task from which on its number is shown."""


class Cell(NamedTuple):
    """A stretch of equal cells: text, and the kind that colours it (None: idle)."""

    text: str
    kind: str | None


class BarRow(NamedTuple):
    """One line: which devices, their cells, their busy share."""

    devices: tuple[int, ...]
    cells: tuple[Cell, ...]
    busy: float


def draw_bars(
    devices: Sequence[Sequence[Bar]],
    makespan_s: float,
    *,
    width: int,
    max_rows: int = 32,
    ascii_only: bool = False,
) -> list[BarRow]:
    """The lines of a timeline, `width` cells wide."""
    groups = group_replicas(devices)
    if makespan_s <= 0 or not any(map(len, devices)):
        return []
    if len(groups) > max_rows:
        return _draw_merged(devices, makespan_s, width, max_rows, ascii_only)
    glyphs = ASCII_GLYPHS if ascii_only else GLYPHS
    numbered = _mean_cells(devices, makespan_s, width) >= NUMBERED_CELLS
    rows = []
    for group in groups:
        bars = devices[group[0]]
        busy = sum(bar.end_s - bar.start_s for bar in bars) / makespan_s
        owners = _fill_cells(bars, makespan_s, width)
        rows.append(BarRow(group, _join_cells(bars, owners, glyphs, numbered=numbered), busy))
    return rows


def draw_axis(makespan_s: float, *, width: int) -> str:
    """Round times under the cells, each starting at its place."""
    line = ""
    for seconds in choose_ticks(makespan_s, max(2, width // 10)):
        start = round(seconds / makespan_s * width) if makespan_s else 0
        text = format_seconds(seconds, digits=3)
        if start + len(text) <= width and start >= len(line):
            line = f"{line:<{start}}{text} "
    return line.rstrip()


def group_replicas(devices: Sequence[Sequence[Bar]]) -> list[tuple[int, ...]]:
    """Devices with equal bars, in the order of their first."""
    groups: dict[tuple[Bar, ...], list[int]] = {}
    for device, bars in enumerate(devices):
        groups.setdefault(tuple(bars), []).append(device)
    return [tuple(group) for group in groups.values()]


def name_row(devices: Sequence[int]) -> str:
    """`GPU 0-3`."""
    return f"GPU {format_ranges(devices)}"


def _mean_cells(devices: Sequence[Sequence[Bar]], makespan_s: float, width: int) -> float:
    """Cells of a mean forward or backward; updates are short and do not need a number."""
    widths = [b.end_s - b.start_s for bars in devices for b in bars if b.kind in "FBIW"]
    return sum(widths) / max(1, len(widths)) / makespan_s * width


def _fill_cells(bars: Sequence[Bar], makespan_s: float, width: int) -> list[int | None]:
    """Position of the bar that fills most of each cell, None where idling does.

    A bar that is the longest of no cell gives its place to its neighbours: the picture is true to
    a cell, the figures beside it are exact.
    """
    best: list[tuple[float, int | None]] = [(0.0, None)] * width
    covered = [0.0] * width
    for position, bar in enumerate(bars):
        low, high = (end / makespan_s * width for end in (bar.start_s, bar.end_s))
        for cell in range(max(0, int(low)), min(width, int(high) + 1)):
            share = min(high, cell + 1) - max(low, cell)
            covered[cell] += share
            if share > best[cell][0]:
                best[cell] = (share, position)
    return [
        position if all_busy >= 0.5 else None
        for (_, position), all_busy in zip(best, covered, strict=True)
    ]


def _join_cells(
    bars: Sequence[Bar], owners: Sequence[int | None], glyphs: dict[str, str], *, numbered: bool
) -> tuple[Cell, ...]:
    """Runs of cells with the same owner, each with its micro-batch number if there is room."""
    cells: list[Cell] = []
    start = 0
    for end in range(1, len(owners) + 1):
        if end < len(owners) and owners[end] == owners[start]:
            continue
        owner, length = owners[start], end - start
        if owner is None:
            cells.append(Cell(" " * length, None))
        else:
            bar = bars[owner]
            number = str(bar.micro_batch) if numbered and bar.kind in "FBIW" else ""
            shown = (
                number if len(number) < length or (number and length == 1 == len(number)) else ""
            )
            cells.append(Cell(shown + glyphs[bar.kind] * (length - len(shown)), bar.kind))
        start = end
    return tuple(cells)


def _draw_merged(
    devices: Sequence[Sequence[Bar]],
    makespan_s: float,
    width: int,
    max_rows: int,
    ascii_only: bool,
) -> list[BarRow]:
    """Lines of several neighbouring devices, shaded by how busy they are."""
    shades = ASCII_SHADES if ascii_only else SHADES
    size = -(-len(devices) // max_rows)
    rows = []
    for first in range(0, len(devices), size):
        members = tuple(range(first, min(first + size, len(devices))))
        filled = _sum_shares([devices[d] for d in members], makespan_s, width)
        shares = [min(1.0, each / len(members)) for each in filled]
        text = "".join(shades[round(share * (len(shades) - 1))] for share in shares)
        rows.append(BarRow(members, (Cell(text, BUSY),), sum(shares) / width))
    return rows


def _sum_shares(rows: Sequence[Sequence[Bar]], makespan_s: float, width: int) -> list[float]:
    """Busy share of every cell, added up over devices."""
    filled = [0.0] * width
    for bars in rows:
        for bar in bars:
            low, high = (end / makespan_s * width for end in (bar.start_s, bar.end_s))
            for cell in range(max(0, int(low)), min(width, int(high) + 1)):
                filled[cell] += max(0.0, min(high, cell + 1) - max(low, cell))
    return filled
