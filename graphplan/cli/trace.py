"""`graphplan trace`: capture a model as an op graph."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from graphplan.cli.options import cache_option, load_graph, model_argument, parse_settings
from graphplan.files import write_noun

if TYPE_CHECKING:
    from graphplan.nouns.opgraph import OpGraph


@click.command(
    name="trace", epilog="Example: graphplan trace examples/mmt.py --set layers=2 -o graph.json"
)
@model_argument
@cache_option
@click.option("-o", "--output", default="graph.json", show_default=True, help="Where to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def command(
    model: str,
    settings: tuple[str, ...],
    use_cache: bool,
    output: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Capture MODEL (a model file, model.py:builder or a saved .pt2) as an op graph.

    No weights are allocated: a 70B model is captured on a laptop.
    """
    start = time.perf_counter()
    graph = load_graph(model, parse_settings(settings), use_cache=use_cache)
    seconds = time.perf_counter() - start
    write_noun(graph, output)
    facts = describe_graph(graph) | {"seconds": round(seconds, 3), "graph": output}
    if as_json:
        import json

        click.echo(json.dumps(facts))
    elif not quiet:
        print_graph(graph, facts)


def describe_graph(graph: OpGraph) -> dict[str, object]:
    """The figures of a graph that users ask for."""
    parameters = [weight for weight in graph.weights if weight.kind == "parameter"]
    return {
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "ops": len(graph.ops),
        "edges": len(graph.edges),
        "parameters": sum(weight.spec.num_elements(1) for weight in parameters),
        "trainable_parameters": sum(
            weight.spec.num_elements(1) for weight in parameters if weight.trainable
        ),
        "inputs": [str(each.spec) for each in graph.inputs],
        "batch": graph.batch,
        "loss": graph.loss is not None,
        "capture": graph.capture,
        "assumptions": [
            f"{each.kind}: {each.text}" + (f" ({each.source})" if each.source else "")
            for each in graph.assumptions
        ],
    }


_BATCH = {
    "dynamic": "symbolic: one capture serves every micro-batch size",
    "fixed": "fixed: micro-batches have the size of the example",
    "none": "none: the inputs have no batch dimension, so there is one micro-batch",
}


def print_graph(graph: OpGraph, facts: dict[str, object]) -> None:
    """The graph in a few lines, and its largest modules."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(graph.name)}[/]: {facts['ops']:,} ops, {facts['edges']:,} edges,"
        f" {facts['parameters']:,} parameters ({facts['trainable_parameters']:,} trainable),"
        f" captured in {facts['seconds']:.1f} s"
    )
    console.print(f"batch dimension: {_BATCH[graph.batch]}")
    console.print(f"loss: {'part of the graph' if facts['loss'] else 'none'}")
    console.print(f"fingerprint: {graph.fingerprint}")
    for each in graph.assumptions:
        where = f" [dim]({escape(each.source)})[/]" if each.source else ""
        console.print(f"[yellow]assumption[/] {escape(f'{each.kind}: {each.text}')}{where}")
    table = Table("module", "ops", "parameters", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, num_ops, num_parameters in list_modules(graph):
        table.add_row(escape(name), f"{num_ops:,}", f"{num_parameters:,}")
    console.print(table)
    console.print(f"written to [bold]{facts['graph']}[/]")


def list_modules(graph: OpGraph, most: int = 16) -> list[tuple[str, int, int]]:
    """(module, ops, parameters) of the outermost modules, in the order in which they run."""
    ops: dict[str, int] = {}
    weights: dict[str, set[str]] = {}
    depth = 1
    while True:
        names = [".".join(op.module.split(".")[:depth]) or "(top)" for op in graph.ops]
        if len(set(names)) > most or depth > 4:
            depth -= 1
            break
        depth += 1
    for op in graph.ops:
        name = ".".join(op.module.split(".")[: max(1, depth)]) or "(top)"
        ops[name] = ops.get(name, 0) + 1
        weights.setdefault(name, set()).update(op.weights)
    rows = [
        (
            name,
            count,
            sum(
                graph.weight_by_name[each].spec.num_elements(1)
                for each in weights[name]
                if graph.weight_by_name[each].kind == "parameter"
            ),
        )
        for name, count in ops.items()
    ]
    if len(rows) <= most:
        return rows
    rest = rows[most - 1 :]
    more = (f"… {len(rest)} more", sum(r[1] for r in rest), sum(r[2] for r in rest))
    return [*rows[: most - 1], more]
