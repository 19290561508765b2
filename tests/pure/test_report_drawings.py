"""Lanes, bars, layouts, figures and dot: what is drawn is what is there."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.nouns.dag import collect_neighbours
from graphplan.report.bars import draw_axis, draw_bars, group_replicas
from graphplan.report.dot import render_dot
from graphplan.report.lanes import draw_lanes, to_ascii
from graphplan.report.layout import layout_graph
from graphplan.report.spans import Bar, split_spans
from graphplan.report.svg import render_svg
from graphplan.report.units import (
    choose_ticks,
    format_bytes,
    format_channel,
    format_count,
    format_ranges,
    format_seconds,
)
from tests.pure.plans import make_plan_example
from tests.pure.strategies import branch_edges, chain_edges, dag_edges

Edges = list[tuple[int, int]]


def draw(num_stages: int, edges: Edges) -> str:
    """Lanes with their numbers."""
    before = collect_neighbours(num_stages, ((dst, src) for src, dst in edges))
    after = collect_neighbours(num_stages, edges)
    rows = draw_lanes(before, after)
    return "\n".join(
        f"{row.text} {'' if row.stage is None else row.stage}".rstrip() for row in rows
    )


def test_lanes_of_branches() -> None:
    """Four branches meet in one stage."""
    assert draw(5, [(0, 4), (1, 4), (2, 4), (3, 4)]) == (
        "● 0\n"
        "│ ● 1\n"
        "│ │ ● 2\n"
        "│ │ │ ● 3\n"
        "├─┴─┴─╯\n"
        "● 4"
    )  # fmt: skip


def test_lanes_of_a_skip() -> None:
    """An output with several readers stays in its lane until the last one."""
    assert draw(5, [(0, 1), (0, 4), (1, 2), (1, 3), (2, 3), (3, 4)]) == (
        "● 0\n"
        "├─╮\n"
        "│ ● 1\n"
        "│ ├─╮\n"
        "│ │ ● 2\n"
        "│ ├─╯\n"
        "│ ● 3\n"
        "├─╯\n"
        "● 4"
    )  # fmt: skip


def test_lanes_keep_chains_apart() -> None:
    """A source never stands right below a sink: that would look like an edge."""
    assert draw(4, [(0, 1), (2, 3)]) == "● 0\n● 1\n  ● 2\n  ● 3"
    assert to_ascii("● │ ├─╯") == "o | +-+"


@settings(max_examples=40)
@given(st.data())
def test_lanes_show_every_stage_once(data: st.DataObject) -> None:
    """Any DAG has a drawing with one row for each stage, in order."""
    num = data.draw(st.integers(1, 9))
    edges = data.draw(dag_edges(num_stages=num))
    before = collect_neighbours(num, ((dst, src) for src, dst in edges))
    rows = draw_lanes(before, collect_neighbours(num, edges))
    assert [row.stage for row in rows if row.stage is not None] == list(range(num))
    assert all(row.text.count("●") == (row.stage is not None) for row in rows)


@settings(max_examples=40)
@given(st.data())
def test_layout_points_right_and_keeps_distance(data: st.DataObject) -> None:
    """Edges run to higher columns, and stages of a column are at least one row apart."""
    num = data.draw(st.integers(1, 12))
    edges = data.draw(dag_edges(num_stages=num))
    layout = layout_graph(num, edges)
    for src, dst in edges:
        assert layout.nodes[src].column < layout.nodes[dst].column
    by_column: dict[int, list[float]] = {}
    for node in layout.nodes:
        by_column.setdefault(node.column, []).append(node.row)
    for rows in by_column.values():
        ordered = sorted(rows)
        assert all(b - a > 1 - 1e-9 for a, b in pairwise(ordered))
    assert [(wire.src, wire.dst) for wire in layout.wires] == edges


def test_layout_of_a_diamond_is_level() -> None:
    """Two equal branches lie above and below their ends."""
    layout = layout_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert [tuple(node) for node in layout.nodes] == [(0, 0.5), (1, 0.0), (1, 1.0), (2, 0.5)]


def test_bars_of_one_device() -> None:
    """Tasks show their micro-batch, idle time is blank, the share beside it is exact."""
    bars = [Bar(0, 4, None, 0, "F", 0), Bar(6, 10, None, 0, "B", 0), Bar(10, 12, None, 0, "U", 0)]
    (row,) = draw_bars([bars], 12.0, width=24)
    assert "".join(cell.text for cell in row.cells) == "0░░░░░░░    0▓▓▓▓▓▓▓===="
    assert row.busy == 10 / 12
    (row,) = draw_bars([bars], 12.0, width=24, ascii_only=True)
    assert "".join(cell.text for cell in row.cells) == "0-------    0#######===="


def test_many_devices_share_lines() -> None:
    """Replicas share a line; too many lines are merged and shaded by how busy they are."""
    example = make_plan_example(chain_edges(3), num_replicas=2)
    rows = split_spans(example.timeline)
    assert group_replicas(rows.devices) == [(0, 1), (2, 3), (4, 5)]
    merged = draw_bars(rows.devices, example.timeline.makespan_s, width=40, max_rows=2)
    assert [row.devices for row in merged] == [(0, 1, 2), (3, 4, 5)]
    assert all(len("".join(cell.text for cell in row.cells)) == 40 for row in merged)
    assert draw_bars([[]], 0.0, width=40) == []
    assert draw_axis(0.3, width=40) == "0 ms         100 ms        200 ms"


def test_svg_is_well_formed_and_complete() -> None:
    """The figure parses, names every stage, and draws one box for each task and kind."""
    example = make_plan_example(branch_edges(2, 2), name='<&"evil')
    root = ElementTree.fromstring(render_svg(example.plan, example.timeline))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert '<&"evil on 5 x a100-80gb' in texts
    stages = [each for each in root.iter() if each.get("class") == "stage"]
    assert [each.get("data-stage") for each in stages] == ["0", "1", "2", "3", "4"]
    paths = [each for each in root.iter() if each.get("class") in ("F", "B")]
    assert sum(each.get("d", "").count("z") for each in paths) == 5 * 8 * 2
    for part in ("graph", "timeline"):
        ElementTree.fromstring(render_svg(example.plan, example.timeline, part=part))


def test_dot_quotes_names() -> None:
    """Names with quotes, backslashes and line breaks cannot break out of a label."""
    plan = make_plan_example(chain_edges(2), name='a"]; evil [label="\\').plan
    label = msgspec.structs.replace(plan.labels[0], modules=('x"y\n\\',))
    plan = msgspec.structs.replace(plan, labels=(label, plan.labels[1]))
    text = render_dot(plan)
    assert text.splitlines()[0] == 'digraph "a\\"]; evil [label=\\"\\\\" {'
    assert '  s0 -> s1 [label="4.00 MB"];' in text
    assert len(text.splitlines()) == 8


def test_units() -> None:
    """Times, bytes, counts and ranges as people write them."""
    assert [format_seconds(s) for s in (0.0, 3e-9, 12e-6, 0.0412345, 1.5, 9.9999, 75.0)] == [
        "0 ms", "3.000 ns", "12.00 µs", "41.23 ms", "1,500 ms", "10,000 ms", "75.00 s",
    ]  # fmt: skip
    assert [format_bytes(b) for b in (0, 1023, 1024, 80 << 30, 2**300)][:4] == [
        "0 B", "1023 B", "1.00 KB", "80.0 GB",
    ]  # fmt: skip
    assert format_count(1_210_000_000) == "1.21 B"
    assert [format_channel(name) for name in ("d0>d1", "d0>>d9", "d3>", "n1>>", "odd\x1b")] == [
        "GPU 0 > GPU 1", "GPU 0 > GPU 9", "GPU 3 out", "node 1 net", "odd\ufffd",
    ]  # fmt: skip
    assert format_ranges([3, 0, 1, 2, 7]) == "0-3, 7"
    assert choose_ticks(0.32, 5) == (0.0, 0.1, 0.2, 0.30000000000000004)


@given(st.floats(1e-12, 1e8), st.integers(2, 12))
def test_ticks_are_few_and_inside(total: float, most: int) -> None:
    """At most so many ticks, the first at 0, the last not beyond the end."""
    ticks = choose_ticks(total, most)
    assert 1 <= len(ticks) <= most
    assert ticks[0] == 0
    assert ticks[-1] <= total * (1 + 1e-6)
