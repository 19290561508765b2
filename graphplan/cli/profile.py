"""`graphplan profile`: what every op takes, measured here or estimated for a GPU elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from graphplan.cli.options import (
    LEARNED,
    ended_at_once,
    load_graph,
    load_learned,
    model_argument,
    parse_budget,
    parse_settings,
    parse_sizes,
)
from graphplan.errors import InvalidOption, UnknownName
from graphplan.files import write_noun

if TYPE_CHECKING:
    from graphplan.cost.cache import ProfileCache
    from graphplan.cost.measure_session import Progress
    from graphplan.nouns.opgraph import OpGraph
    from graphplan.nouns.table import Host, ProfileTable

DEFAULT_SIZES = (1, 4, 16)
MOST_ROWS = 12
MEASURED_DTYPES = ("bfloat16", "float16", "float32", "float64")


@click.command(
    name="profile",
    epilog="Examples: graphplan profile model.py --device cuda -o table.json;"
    " graphplan profile graph.json --estimate h100;"
    " graphplan profile model.py --costs learned:cost.json",
)
@model_argument
@click.option("--device", help="Measure on this device (cpu, cuda, cuda:1); default: what is here.")
@click.option("--estimate", "gpu", metavar="GPU", help="Estimate for a GPU instead of measuring.")
@click.option(
    "--costs",
    metavar="learned:FILE",
    help="Predict with a learned cost model, for its own device or that of --estimate.",
)
@click.option(
    "--batch-sizes", metavar="N,N,…", help="Micro-batch sizes of the columns.  [default: 1,4,16]"
)
@click.option(
    "--ranks-per-host",
    type=int,
    metavar="N",
    help="On a CPU: measure while N-1 others train too, as in a run of N ranks; 1 measures alone."
    "  [default: as many as there are cores, at most 4]",
)
@click.option(
    "--budget",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Most time for measuring (90s, 5m, none); the rest is left to the fitted laws.",
)
@click.option("--precision", help="Compute in this dtype in place of float32, e.g. bfloat16.")
@click.option("--autocast", help="Measure under torch.autocast to this dtype, casts included.")
@click.option("--tf32", is_flag=True, help="Measure float32 products on matrix units.")
@click.option(
    "--compile", "compiled", is_flag=True, help="Measure what torch.compile makes of each unit."
)
@click.option("--no-cache", is_flag=True, help="Neither read nor write earlier measurements.")
@click.option("-o", "--output", default="table.json", show_default=True, help="Where to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def command(
    model: str,
    settings: tuple[str, ...],
    gpu: str | None,
    costs: str | None,
    batch_sizes: str | None,
    no_cache: bool,
    output: str,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> int:
    """Measure or estimate the seconds and bytes of every op of MODEL at several batch sizes.

    Ctrl-C keeps what was measured: the table is written with estimates for the rest.
    """
    check_wishes(gpu, costs, **wishes)
    start = time.perf_counter()
    sizes = parse_sizes(batch_sizes) if batch_sizes else None
    if gpu or costs:
        graph = load_graph(model, parse_settings(settings), use_cache=not no_cache)
        table = predict(graph, costs, gpu, sizes, wishes["precision"])
    else:
        graph, table = measure(
            model, parse_settings(settings), sizes, use_cache=not no_cache, quiet=quiet, **wishes
        )
    write_noun(table, output)
    facts = describe_table(graph, table) | {
        "seconds": round(time.perf_counter() - start, 3),
        "table": output,
    }
    if as_json:
        import json

        click.echo(json.dumps(facts))
    elif not quiet:
        print_table(graph, table, facts)
    return 130 if "interrupted" in table.provenance else 0


def check_wishes(
    gpu: str | None,
    costs: str | None,
    *,
    device: str | None,
    ranks_per_host: int | None,
    precision: str | None,
    autocast: str | None,
    compiled: bool,
    **_: Any,
) -> None:
    """Refuse options that contradict each other."""
    if costs is not None and not costs.startswith(LEARNED):
        raise InvalidOption(
            f"{costs!r} is no learned cost model.", remedy="Write --costs learned:cost.json."
        )
    if (gpu or costs) and device:
        raise InvalidOption(
            "--device measures, --estimate and --costs do not.", remedy="Give one of them."
        )
    if (gpu or costs) and ranks_per_host is not None:
        raise InvalidOption(
            "--ranks-per-host is for measuring.", remedy="Leave it away, or give --device cpu."
        )
    if compiled and (gpu or costs):
        raise InvalidOption(
            "--compile is for measuring.",
            remedy="Leave it away; plans have --execution compiled for estimates.",
        )
    if autocast and (gpu or costs or precision):
        raise InvalidOption(
            "--autocast is for measuring, in the precision of the model.",
            remedy="Leave it away, or measure without --precision.",
        )
    for name in (precision, autocast):
        if name is not None and not (gpu or costs) and name not in MEASURED_DTYPES:
            raise UnknownName("precision", name, MEASURED_DTYPES)


def choose_sizes(graph: OpGraph, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """The wanted sizes, or default ones that the graph allows."""
    if sizes:
        return tuple(sizes)
    return DEFAULT_SIZES if graph.batch == "dynamic" else (graph.batch_size,)


def predict(
    graph: OpGraph,
    costs: str | None,
    gpu: str | None,
    sizes: Sequence[int] | None,
    precision: str | None,
) -> ProfileTable:
    """The table of a learned cost model, or the laws of a GPU."""
    from graphplan.cost.estimate import estimate_table
    from graphplan.cost.hardware import find_device_type

    chosen = choose_sizes(graph, sizes)
    if costs is None:
        assert gpu is not None
        kind = find_device_type(gpu)
        return estimate_table(graph, kind, batch_sizes=chosen, precision=precision)
    from graphplan.cost.predict import predict_table

    learned = load_learned(costs)
    kind = find_device_type(gpu) if gpu else learned.devices[0].plain
    return predict_table(learned, graph, kind, batch_sizes=chosen, precision=precision)


def measure(
    model: str,
    settings: dict[str, Any],
    sizes: Sequence[int] | None,
    *,
    device: str | None,
    ranks_per_host: int | None,
    budget: str,
    precision: str | None,
    autocast: str | None,
    tf32: bool,
    compiled: bool,
    use_cache: bool,
    quiet: bool,
) -> tuple[OpGraph, ProfileTable]:
    """The measured table of a model file or a captured graph, and of the host if it is shared."""
    from graphplan.cost.measure import find_device, measure_table, open_cache
    from graphplan.cost.measure_neighbours import check_ranks, count_ranks, use_rank_threads
    from graphplan.cost.measure_unit import Numerics

    chosen = device or find_device()
    use_rank_threads(chosen)
    num_ranks = count_ranks(chosen) if ranks_per_host is None else ranks_per_host
    check_ranks(num_ranks, chosen)
    captured, inputs, optimizer = _load_captured(model, settings)
    numerics = Numerics(cast=precision, autocast=autocast, tf32=tf32, compiled=compiled)
    cache = open_cache(chosen, ranks_per_host=num_ranks, numerics=numerics) if use_cache else None
    with show_progress(enabled=not quiet) as report:
        table = measure_table(
            captured,
            device=chosen,
            batch_sizes=choose_sizes(captured.graph, sizes),
            cache=cache,
            progress=report,
            inputs=inputs,
            ranks_per_host=num_ranks,
            optimizer=optimizer,
            budget_s=parse_budget(budget),
            numerics=numerics,
        )
    if num_ranks > 1 and "interrupted" not in table.provenance:
        table = msgspec.structs.replace(table, host=find_host(num_ranks, cache))
    return captured.graph, table


def find_host(num_ranks: int, cache: ProfileCache | None) -> Host:
    """What the ranks of this host have of it: from the cache, else measured."""
    found = cache.find_host() if cache is not None else None
    if found is None:
        from graphplan_runtime.hostprofile import measure_host

        found = measure_host(num_ranks)
        if cache is not None:
            cache.save_host(found)
    return found


def _load_captured(model: str, settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What can be measured, and the model file's functions for batches and for an optimizer."""
    if model.endswith(".json"):
        from graphplan.cost.measure_rebuild import rebuild_graph

        return rebuild_graph(load_graph(model, settings)), None, None
    with ended_at_once():
        from graphplan.frontend import load_model_file, trace_model_file

        file = load_model_file(model, settings=settings)
        inputs = file.inputs if callable(file.inputs) else None
        return trace_model_file(file), inputs, file.optimizer


@contextlib.contextmanager
def show_progress(*, enabled: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A progress bar with the time left on a terminal, nothing in a pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(progress: Progress) -> None:
            left = (
                f"{format_seconds(progress.seconds_left)} left  " if progress.seconds_left else ""
            )
            bar.update(
                task,
                total=progress.num_units,
                completed=progress.num_done,
                description=left + escape(progress.label),
            )

        yield report


def format_seconds(seconds: float) -> str:
    """`1:05` from a minute on, `12 s` below."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"


def describe_table(graph: OpGraph, table: ProfileTable) -> dict[str, Any]:
    """The figures of a table that users ask for, by micro-batch size."""
    columns = range(len(table.batch_sizes))
    ratios = table.calibration or (1.0,) * len(columns)

    def total(name: str) -> list[float]:
        return [ratios[j] * sum(getattr(row, name)[j] for row in table.rows) for j in columns]

    forward, inputs, weights = map(total, ("forward_s", "input_grad_s", "weight_grad_s"))
    return {
        "name": graph.name,
        "graph": table.graph,
        "device": table.device,
        "source": table.source,
        "ops": len(table.rows),
        "batch_sizes": list(table.batch_sizes),
        "forward_s": forward,
        "input_grad_s": inputs,
        "weight_grad_s": weights,
        "calibration": list(table.calibration),
        "worst_spread": max((row.spread for row in table.rows), default=0.0),
        "worst_fit_error": max((row.fit_error for row in table.rows), default=0.0),
        "step_uncertainty": table.step_uncertainty,
        "extrapolated": [row.op for row in table.rows if row.extrapolated],
        "update_s_per_element": table.update_s_per_element,
        "host": msgspec.to_builtins(table.host),
        "provenance": table.provenance,
    }


def print_table(graph: OpGraph, table: ProfileTable, facts: dict[str, Any]) -> None:
    """Totals by micro-batch size, and the kinds of ops that take the most time."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(graph.name)}[/] on [bold]{escape(table.device)}[/], {table.source}:"
        f" {len(table.rows):,} ops in {facts['seconds']:.1f} s"
    )
    console.print(f"[dim]{escape(table.provenance)}[/]")
    if table.source == "learned":
        console.print(f"step times are uncertain by {table.step_uncertainty:.0%}")
    totals = Table(
        "micro-batch", "forward", "input grad", "weight grad", "step", "step / sum of ops"
    )
    for j, size in enumerate(table.batch_sizes):
        parts = [facts[name][j] for name in ("forward_s", "input_grad_s", "weight_grad_s")]
        ratio = f"{table.calibration[j]:.3f}" if table.calibration else "not measured"
        totals.add_row(str(size), *map(format_time, (*parts, sum(parts))), ratio)
    console.print(totals)
    if table.host is not None:
        console.print(describe_host(table.host))
    kinds = Table("op", "count", f"time at {table.batch_sizes[-1]}", "share")
    for kind, count, seconds, share in list_kinds(graph, table):
        kinds.add_row(escape(kind), str(count), format_time(seconds), f"{share:.1%}")
    console.print(kinds)
    console.print(f"written to [bold]{facts['table']}[/]")


def describe_host(host: Host) -> str:
    """One line on what ranks share."""
    link = host.link
    return (
        f"{host.num_ranks} ranks on the host: memory {host.bandwidth_bytes_per_s / 1e9:.1f} GB/s"
        f" each, {format_time(host.task_s)} a task; a message takes {format_time(link.host_s)} and"
        f" {link.host_s_per_byte * 1e9:.2f} ns a byte from each end, and between them"
        f" {format_time(link.latency_s)} at {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s;"
        f" {format_time(link.reduce_s or 0.0)} and {link.reduce_s_per_byte * 1e9:.2f} ns a byte"
        " for a message of a sum of gradients"
    )


def list_kinds(graph: OpGraph, table: ProfileTable) -> list[tuple[str, int, float, float]]:
    """(kind, ops, seconds, share) at the largest size, the longest first."""
    count: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for row in table.rows:
        kind = graph.op_by_name[row.op].kind
        count[kind] = count.get(kind, 0) + 1
        taken = row.forward_s[-1] + row.input_grad_s[-1] + row.weight_grad_s[-1]
        seconds[kind] = seconds.get(kind, 0.0) + taken
    whole = sum(seconds.values()) or 1.0
    ordered = sorted(seconds, key=lambda kind: -seconds[kind])[:MOST_ROWS]
    return [(kind, count[kind], seconds[kind], seconds[kind] / whole) for kind in ordered]


def format_time(seconds: float) -> str:
    """Seconds with a fitting unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
