"""`graphplan compare`: every planner and every schedule side by side."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from graphplan.cli.options import (
    COSTS_HELP,
    cache_option,
    cluster_options,
    load_cluster,
    load_graph,
    load_tables,
    model_argument,
    parse_settings,
)


@click.command(name="compare", epilog="Example: graphplan compare examples/mmt.py --gpus 8")
@model_argument
@cache_option
@cluster_options
@click.option("--batch", type=click.IntRange(1), help="Samples of one optimizer step.")
@click.option("--planner", multiple=True, help="Only these planners.")
@click.option("--schedule", multiple=True, help="Only these schedules.")
@click.option("--costs", default="estimate", show_default=True, help=COSTS_HELP)
@click.option("--effort", default=1.0, show_default=True, help="Counted work of each planner.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of rows.")
def command(
    model: str,
    settings: tuple[str, ...],
    use_cache: bool,
    gpus: int | None,
    cluster: str | None,
    memory: str | None,
    execution: str,
    batch: int | None,
    planner: tuple[str, ...],
    schedule: tuple[str, ...],
    costs: str,
    effort: float,
    as_json: bool,
) -> None:
    """Plan MODEL with every planner, and run the best cut under every schedule."""
    from graphplan.planner.options import SearchOptions
    from graphplan.planner.whatif import compare_planners

    park = load_cluster(cluster, gpus, memory, execution)
    graph = load_graph(model, parse_settings(settings), use_cache=use_cache)
    options = SearchOptions(batch_size=batch, effort=effort)
    rows = compare_planners(
        graph,
        park,
        options,
        planners=planner or None,
        schedules=schedule or None,
        tables=load_tables(costs, graph, park, options),
    )
    if as_json:
        click.echo(json.dumps(rows))
    else:
        print_rows(rows)


WIDTH = 100
"""Columns of the table, on a terminal and in a pipe."""


def print_rows(rows: list[dict[str, Any]]) -> None:
    """The table, the fastest marked; below it why some planners and schedules have no figures."""
    click.echo("\n".join(render_rows(rows)))


def render_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of at most WIDTH columns."""
    head = ("planner", "schedule", "stages", "step, ms", "samples/s", "bubble, %", "peak, GiB")
    cells = [(*head, "search, s"), *map(_write_row, rows)]
    best = min((row["step_s"] for row in rows if row["step_s"] is not None), default=None)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    marks = ["", *("  <- fastest" if row["step_s"] == best is not None else "" for row in rows)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + mark
        for line, mark in zip(cells, marks, strict=True)
    ]
    for row in rows:
        if row["step_s"] is None:
            note = f"{row['planner']}, {row['schedule']}: {row['note']}"
            lines += ["", *textwrap.wrap(note, WIDTH, subsequent_indent="  ")]
    return lines


def _write_row(row: dict[str, Any]) -> tuple[str, ...]:
    if row["step_s"] is None:
        return (row["planner"], row["schedule"], *(6 * ["-"]))
    return (
        row["planner"],
        row["schedule"],
        str(row["stages"]),
        f"{row['step_s'] * 1e3:,.2f}",
        f"{row['samples_per_s']:,.1f}",
        f"{row['bubble'] * 100:.1f}",
        f"{row['peak_bytes'] / 2**30:.2f}",
        f"{row['seconds']:.2f}",
    )
