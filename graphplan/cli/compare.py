"""`graphplan compare`: every planner and every schedule side by side."""

from __future__ import annotations

import json
from typing import Any

import click

from graphplan.cli.options import (
    COSTS_HELP,
    cluster_options,
    load_cluster,
    load_graph,
    load_tables,
    model_argument,
    parse_settings,
)


@click.command(name="compare", epilog="Example: graphplan compare examples/mmt.py --gpus 8")
@model_argument
@cluster_options
@click.option("--batch", type=click.IntRange(1), help="Samples of one optimizer step.")
@click.option("--planner", multiple=True, help="Only these planners.")
@click.option("--schedule", multiple=True, help="Only these schedules.")
@click.option("--costs", default="estimate", show_default=True, help=COSTS_HELP)
@click.option("--time-limit", default=5.0, show_default=True, help="Seconds for each planner.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of rows.")
def command(
    model: str,
    settings: tuple[str, ...],
    gpus: int | None,
    cluster: str | None,
    memory: str | None,
    batch: int | None,
    planner: tuple[str, ...],
    schedule: tuple[str, ...],
    costs: str,
    time_limit: float,
    as_json: bool,
) -> None:
    """Plan MODEL with every planner, and run the best cut under every schedule."""
    from graphplan.planner.options import SearchOptions
    from graphplan.planner.whatif import compare_planners

    park = load_cluster(cluster, gpus, memory)
    graph = load_graph(model, parse_settings(settings))
    options = SearchOptions(batch_size=batch, time_limit_s=time_limit)
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


def print_rows(rows: list[dict[str, Any]]) -> None:
    """The table, the fastest marked."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ("planner", "schedule", "stages", "step, ms", "samples/s", "bubble", "peak, GiB", "s")
    for name in names:
        table.add_column(name, justify="left" if name in ("planner", "schedule") else "right")
    best = min((row["step_s"] for row in rows if row["step_s"] is not None), default=None)
    for row in rows:
        if row["step_s"] is None:
            table.add_row(row["planner"], row["schedule"], "-", f"[dim]{row['note']}[/]")
            continue
        table.add_row(
            row["planner"],
            row["schedule"],
            str(row["stages"]),
            f"{row['step_s'] * 1e3:,.2f}",
            f"{row['samples_per_s']:,.1f}",
            f"{row['bubble']:.1%}",
            f"{row['peak_bytes'] / 2**30:.2f}",
            f"{row['seconds']:.2f}",
            style="bold" if row["step_s"] == best else None,
        )
    Console(highlight=False).print(table)
