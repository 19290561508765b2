"""`graphplan show`: a plan on the terminal, as a page, as a trace or as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphplan.errors import InvalidOption

if TYPE_CHECKING:
    from graphplan.nouns.opgraph import OpGraph
    from graphplan.nouns.plan import Plan
    from graphplan.nouns.timeline import Timeline


@click.command(name="show", epilog="Example: graphplan show plan.json --html report.html")
@click.argument("plan", type=str)
@click.option("--html", metavar="FILE", help="Write a self-contained page.")
@click.option("--timeline", metavar="FILE", help="Write a Chrome trace, for Perfetto.")
@click.option("--svg", metavar="FILE", help="Write a vector figure.")
@click.option(
    "--figure",
    type=click.Choice(["both", "graph", "timeline"]),
    default="both",
    show_default=True,
    help="What the figure shows.",
)
@click.option("--graph", metavar="FILE", help="A graph.json, for module names the plan lacks.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def command(
    plan: str,
    html: str | None,
    timeline: str | None,
    svg: str | None,
    figure: str,
    graph: str | None,
    as_json: bool,
) -> None:
    """Show PLAN, a plan.json; with an output option, write that instead of the summary."""
    from graphplan.files import read_noun
    from graphplan.nouns.opgraph import OpGraph
    from graphplan.nouns.plan import Plan
    from graphplan.report.timing import time_plan

    found = read_noun(plan, Plan)
    captured = read_noun(graph, OpGraph) if graph else None
    if captured is not None and captured.fingerprint != found.model.fingerprint:
        raise InvalidOption(
            f"{graph} is the graph {captured.fingerprint}, the plan is for"
            f" {found.model.fingerprint}.",
            remedy=f"Give the graph.json of {found.model.name!r}, or leave --graph out.",
        )
    run = time_plan(found)
    written = write_outputs(
        found, run, captured, html=html, timeline=timeline, svg=svg, figure=figure
    )
    if as_json:
        import msgspec

        from graphplan.report.figures import collect_figures

        click.echo(msgspec.json.encode(collect_figures(found, plan, graph=captured)).decode())
    elif written:
        for path in written:
            click.echo(f"written to {path}")
    else:
        print_summary(found, run, captured)


def write_outputs(
    plan: Plan,
    run: Timeline,
    graph: OpGraph | None,
    *,
    html: str | None,
    timeline: str | None,
    svg: str | None,
    figure: str,
) -> list[str]:
    """Write the files that were asked for; returns their paths."""
    from graphplan.files import write_bytes

    if html:
        from graphplan.report.page import render_page

        write_bytes(render_page(plan, run, graph=graph).encode(), Path(html))
    if timeline:
        from graphplan.report.trace import render_trace

        write_bytes(render_trace(plan, run), Path(timeline))
    if svg:
        from graphplan.report.svg import render_svg

        text = render_svg(plan, run, graph=graph, part=figure)  # type: ignore[arg-type]
        write_bytes(text.encode(), Path(svg))
    return [path for path in (html, timeline, svg) if path]


def print_summary(plan: Plan, run: Timeline, graph: OpGraph | None) -> None:
    """The summary on standard output; without colours when that is no terminal."""
    from rich.console import Console

    from graphplan.report.summary import render_summary

    Console(highlight=False).print(render_summary(plan, run, graph=graph))
