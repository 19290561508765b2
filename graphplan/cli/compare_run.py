"""`graphplan compare-run`: predicted against measured, by stage and task kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import msgspec

from graphplan.errors import InvalidOption
from graphplan.files import read_noun

if TYPE_CHECKING:
    from rich.table import Table

    from graphplan.compare import Comparison, TaskError


@click.command(name="compare-run", epilog="Example: graphplan compare-run plan.json run.json")
@click.argument("plan", type=str)
@click.argument("run", type=str)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(plan: str, run: str, as_json: bool) -> None:
    """Compare what PLAN predicts with RUN, the timeline that `graphplan run -o run.json` wrote."""
    from graphplan.nouns.plan import Plan
    from graphplan.nouns.timeline import Timeline

    measured = read_noun(run, Timeline)
    if measured.source != "measured":
        raise InvalidOption(
            f"{run} is a simulated timeline.",
            remedy="Give a measured one: graphplan run plan.json model.py -o run.json.",
        )
    comparison = compare_plan(read_noun(plan, Plan), measured)
    if as_json:
        click.echo(json.dumps(describe_comparison(comparison)))
    else:
        print_comparison(comparison)


def compare_plan(plan: Any, measured: Any) -> Comparison:
    """Simulate the plan as priced and as measured, and compare with the run."""
    from graphplan.compare import compare_timelines, insert_measured
    from graphplan.simulate import simulate_program

    program = plan.parse_program()
    return compare_timelines(
        simulate_program(plan.prices, program),
        simulate_program(insert_measured(plan.prices, measured), program),
        measured,
    )


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """What `--json` prints."""
    from graphplan.compare import list_findings

    found: dict[str, Any] = msgspec.to_builtins(comparison)
    return found | {"error": comparison.error, "findings": list_findings(comparison)}


def print_comparison(comparison: Comparison) -> None:
    """Step times, a table by kind and stage, and what is off."""
    from rich.console import Console
    from rich.markup import escape

    from graphplan.compare import list_findings

    console = Console(highlight=False)
    console.print(
        f"step: predicted {comparison.predicted_step_s * 1e3:.1f} ms, measured"
        f" {comparison.measured_step_s * 1e3:.1f} ms ({comparison.error:+.1%});"
        f" simulated with the measured task times {comparison.explained_step_s * 1e3:.1f} ms"
    )
    console.print(make_table([*comparison.kinds, *comparison.stages]))
    for device in comparison.devices:
        console.print(
            f"device {device.device}: busy {device.measured_busy_s * 1e3:.1f} ms (predicted"
            f" {device.predicted_busy_s * 1e3:.1f}), idle {device.measured_idle_s * 1e3:.1f} ms"
            f" (predicted {device.predicted_idle_s * 1e3:.1f})"
        )
    for finding in list_findings(comparison):
        console.print(f"[bold]·[/] {escape(finding)}")


def make_table(rows: list[TaskError]) -> Table:
    """One row for each kind, and for each kind of each stage."""
    from rich.table import Table

    heads = ("tasks", "count", "predicted ms", "measured ms", "measured / predicted")
    table = Table(*heads, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row.kind if row.stage is None else f"  {row.stage}{row.kind}",
            str(row.count),
            f"{row.predicted_s * 1e3:.3f}",
            f"{row.measured_s * 1e3:.3f}",
            f"{row.ratio:.2f}",
        )
    return table
