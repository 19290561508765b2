"""draw_lanes: a DAG of stages as text, one line for each stage, lines for the edges.

●     0      A stage's output runs down its lane until its last reader. A row of joints
├─╮   1      leads outputs into a stage that has several inputs, or shares one output
● │   ...    among several readers. Works for any DAG; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_JOINTS = {  # (up, down, left, right)
    (True, True, False, False): "│",
    (True, True, True, False): "┤",
    (True, True, False, True): "├",
    (True, True, True, True): "┼",
    (True, False, True, False): "╯",
    (True, False, False, True): "╰",
    (True, False, True, True): "┴",
    (False, True, True, False): "╮",
    (False, True, False, True): "╭",
    (False, True, True, True): "┬",
}
_ASCII = str.maketrans("●│┤├┼╯╰┴╮╭┬─", "o|+++++++++-")


class LaneRow(NamedTuple):
    """One line of the drawing; `stage` is None for a row of joints."""

    text: str
    stage: int | None
    lane: int


def draw_lanes(
    predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]]
) -> list[LaneRow]:
    """The rows of a DAG whose nodes are numbered in a topological order."""
    rows: list[LaneRow] = []
    lanes: list[int | None] = []
    unread = [len(each) for each in successors]
    for stage, before in enumerate(predecessors):
        sources = [lanes.index(source) for source in before]
        ending = [lane for lane, source in zip(sources, before, strict=True) if unread[source] == 1]
        lane = min(ending) if ending else _free_lane(lanes, rows, sources)
        lanes += [None] * (lane + 1 - len(lanes))
        if sources and sources != [lane]:
            rows.append(LaneRow(_draw_joints(lanes, sources, ending, lane), None, lane))
        for source in before:
            unread[source] -= 1
        for each in ending:
            lanes[each] = None
        marks = ["│" if held is not None else " " for held in lanes]
        marks[lane] = "●"
        rows.append(LaneRow(" ".join(marks).rstrip(), stage, lane))
        lanes[lane] = stage if successors[stage] else None
    return rows


def to_ascii(text: str) -> str:
    """The same drawing for terminals without box characters."""
    return text.translate(_ASCII)


def _free_lane(lanes: Sequence[int | None], rows: Sequence[LaneRow], sources: list[int]) -> int:
    """A free lane, not the one of the row above: a new source must not look like a successor."""
    above = rows[-1].lane if rows and not sources else None
    free = [lane for lane, held in enumerate(lanes) if held is None and lane != above]
    right = [lane for lane in free if not sources or lane > min(sources)]
    return min(right, default=len(lanes))


def _draw_joints(
    lanes: Sequence[int | None], sources: list[int], ending: list[int], lane: int
) -> str:
    """The row above a stage: the lanes of its inputs lead into its own."""
    joined = {*sources, lane}
    low, high = min(joined), max(joined)
    text = ""
    for i, held in enumerate(lanes):
        if i in joined:
            up = held is not None
            down = i == lane or i not in ending
            text += _JOINTS[up, down, i > low, i < high]
        elif held is not None:
            text += "│"
        else:
            text += "─" if low < i < high else " "
        text += "─" if low <= i < high else " "
    return text.rstrip()
