"""`graphplan search`: from a model file to a checked plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from graphplan.cli.options import (
    COSTS_HELP,
    cache_option,
    cluster_options,
    load_cluster,
    load_graph,
    load_tables,
    model_argument,
    parse_pins,
    parse_settings,
)
from graphplan.files import write_noun

if TYPE_CHECKING:
    from graphplan.nouns.opgraph import OpGraph
    from graphplan.nouns.plan import Plan
    from graphplan.planner.options import SearchOptions
    from graphplan.planner.search import Progress, Watch


@click.command(
    name="search", epilog="Example: graphplan search examples/mmt.py --gpus 8 -o plan.json"
)
@model_argument
@cache_option
@cluster_options
@click.option("--batch", type=click.IntRange(1), help="Samples of one optimizer step.")
@click.option(
    "--micro-batch", type=click.IntRange(1), multiple=True, help="Micro-batch sizes to consider."
)
@click.option("--planner", default="auto", show_default=True, help="Which solver cuts the graph.")
@click.option("--schedule", default="auto", show_default=True, help="Order of the micro-batches.")
@click.option(
    "--policy",
    default="flush",
    show_default=True,
    help="Weight policy: flush, local, or one that never drains: naive, stash, vertical-sync, 2bw,"
    " predict, spectrain1, spectrain2.",
)
@click.option(
    "--accumulate",
    type=click.IntRange(1),
    help="Micro-batches of one update without a drain; the batch for 2bw, else 1.",
)
@click.option(
    "--local-steps",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Batches between two averagings of policy local.",
)
@click.option(
    "--direction",
    default="optimizer",
    show_default=True,
    help="What predict and spectrain follow: optimizer, or displacement for any optimizer.",
)
@click.option("--costs", default="estimate", show_default=True, help=COSTS_HELP)
@click.option(
    "--objective", default="throughput", show_default=True, help="throughput, latency or memory."
)
@click.option(
    "--optimizer", default="adam", show_default=True, help="sgd, momentum, nesterov, adam, adamw."
)
@click.option(
    "--precision", default="float32", show_default=True, help="float32, bfloat16 or float16."
)
@click.option("--mixed", is_flag=True, help="Keep fp32 master weights beside 16-bit ones.")
@click.option(
    "--zero",
    default="auto",
    show_default=True,
    help="What replicas share (ZeRO): 0, 1 (optimizer states), 2 (and gradients), 3 (and weights),"
    " or auto: what is fastest and fits.",
)
@click.option(
    "--recompute",
    default="auto",
    show_default=True,
    help="Recompute activations in the backward: none, auto (where it helps) or full.",
)
@click.option(
    "--effort",
    default=1.0,
    show_default=True,
    help="Counted work of the search; 4 means about four times as much.",
)
@click.option(
    "--time-limit",
    type=float,
    help="A guard: end the search after so many seconds. The plan then depends on the clock.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the search.")
@click.option("--pin", multiple=True, metavar="MODULE=DEVICE", help="Place a module; repeatable.")
@click.option(
    "--keep", multiple=True, metavar="MODULE", help="Never cut it; `layers.*`: none of them."
)
@click.option(
    "--for",
    "target",
    metavar="TARGET",
    help="Find a plan that this runtime can run: megatron, torchtitan, deepspeed or torch.",
)
@click.option("--no-baselines", is_flag=True, help="Do not compute the plans to compare with.")
@click.option("-o", "--output", default="plan.json", show_default=True, help="Where to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def command(
    model: str,
    settings: tuple[str, ...],
    gpus: int | None,
    cluster: str | None,
    memory: str | None,
    execution: str,
    costs: str,
    use_cache: bool,
    output: str,
    as_json: bool,
    quiet: bool,
    target: str | None,
    **wishes: Any,
) -> None:
    """Find the best pipeline plan for MODEL: a model file, a .pt2 file or a graph.json."""
    start = time.perf_counter()
    options = read_options(**wishes)
    park = load_cluster(cluster, gpus, memory, execution)
    graph = load_graph(model, parse_settings(settings), use_cache=use_cache)
    tables = load_tables(costs, graph, park, options)
    from graphplan.planner.search import search_plan
    from graphplan.planner.targeted import describe_target, search_for

    before = time.perf_counter()
    with show_progress(quiet=quiet or as_json) as watch:
        if target is None:
            plan, told = search_plan(graph, park, options, tables=tables, watch=watch), ""
        else:
            found = search_for(graph, park, options, target, tables=tables, watch=watch)
            plan, told = found.plan, describe_target(found)
    now = time.perf_counter()
    write_noun(plan, output)
    if as_json:
        from graphplan.report.figures import collect_figures

        figures = collect_figures(
            plan, output, graph=graph, search_s=now - before, total_s=now - start
        )
        click.echo(msgspec.json.encode(figures))
    elif not quiet:
        _show(plan, graph, told, estimated=tables is None)
        took = f"(search {now - before:.1f} s, in all {now - start:.1f} s)"
        click.echo(f"written to {output} {took}")


def _show(plan: Plan, graph: OpGraph, told: str, *, estimated: bool) -> None:
    """The summary, and what is told of the target."""
    from rich.console import Console

    from graphplan.report.summary import render_summary
    from graphplan.simulate.engine import simulate_program

    timeline = simulate_program(plan.prices, plan.parse_program())
    console = Console(highlight=False)
    console.print(render_summary(plan, timeline, graph=graph))
    if told:
        console.print(told, markup=False)
    if estimated:
        _warn_unpriced(plan, graph)


def _warn_unpriced(plan: Plan, graph: OpGraph) -> None:
    """Name the ops that have no formula, with their share."""
    from graphplan.cost.unpriced import describe_unpriced, find_unpriced

    size = max(stage.micro_batch_size for stage in plan.stages.stages)
    found = find_unpriced(graph, plan.cluster.types[0], size, precision=plan.training.precision)
    if found:
        click.echo(f"warning: {describe_unpriced(found)}", err=True)


def read_options(
    *,
    batch: int | None,
    micro_batch: tuple[int, ...],
    no_baselines: bool,
    time_limit: float | None,
    pin: tuple[str, ...],
    **same: Any,
) -> SearchOptions:
    """The command line's options as the planner takes them."""
    from graphplan.planner.options import SearchOptions

    return SearchOptions(
        batch_size=batch,
        micro_batch_sizes=micro_batch or None,
        baselines=not no_baselines,
        time_limit_s=time_limit,
        pins=parse_pins(pin),
        **same,
    )


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Watch | None]:
    """A bar with the phase, the best step and the gap so far, on terminals only."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.fields[best]}")
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("posing", total=1.0, best="")

        def update(progress: Progress) -> None:
            best = ""
            if progress.step_s < float("inf"):
                best = f"best {progress.step_s * 1e3:.2f} ms"
                if progress.bound_s:
                    best += f", gap {progress.step_s / progress.bound_s - 1:.1%}"
            bars.update(bar, completed=progress.share, description=progress.phase, best=best)

        yield update
