"""`graphplan export`: a plan for another runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphplan.cli.options import load_graph, parse_settings
from graphplan.errors import InvalidOption, UnknownName
from graphplan.files import read_noun, write_bytes
from graphplan.nouns.plan import Plan

if TYPE_CHECKING:
    from graphplan.nouns.opgraph import OpGraph

PICTURES = ("dot", "json")
"""What any plan can become."""
FOLDERS = ("deepspeed", "torch", "torchtitan")
LAUNCHERS = ("sky", "slurm")
TARGETS = (*PICTURES, *LAUNCHERS, "megatron", *FOLDERS)


@click.command(
    name="export",
    epilog="Example: graphplan export plan.json --to torch --model examples/gpt.py -o exported",
)
@click.argument("plan", type=str)
@click.option("--to", "target", required=True, help=", ".join(sorted(TARGETS)))
@click.option("--model", help="The model file or graph.json of the plan.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in search.")
@click.option(
    "-o",
    "--output",
    help="File (.yaml for Megatron's YAML), default: standard output; for"
    f" {', '.join(FOLDERS)} a folder.",
)
def command(
    plan: str, target: str, model: str | None, settings: tuple[str, ...], output: str | None
) -> None:
    """Write PLAN for another runtime, or say why that runtime cannot run it."""
    if target not in TARGETS:
        raise UnknownName("export target", target, TARGETS)
    given = read_noun(plan, Plan)
    if target in PICTURES:
        _write(_draw(given, target), output)
        return
    if model is None:
        raise InvalidOption(
            f"Exporting to {target} needs the modules of the model.",
            remedy=f"Add --model with the model of the plan ({given.model.name}).",
        )
    if target in LAUNCHERS:
        _write(_launch(given, target, plan, model, settings), output)
        return
    graph = load_graph(model, parse_settings(settings))
    if target == "megatron":
        _write(_say_megatron(given, graph, output), output)
        return
    folder = Path(output or "exported")
    click.echo(_fill(given, graph, target, model, settings, folder))


def _write(text: str, output: str | None) -> None:
    if output:
        write_bytes(text.encode(), Path(output))
        click.echo(f"written to {output}")
    else:
        click.echo(text)


def _draw(plan: Plan, target: str) -> str:
    if target == "dot":
        from graphplan.report.dot import render_dot

        return render_dot(plan)
    from graphplan.export.flat import export_flat

    return json.dumps(export_flat(plan), indent=1)


def _launch(plan: Plan, target: str, path: str, model: str, settings: tuple[str, ...]) -> str:
    from graphplan.export.launch import export_sky, export_slurm

    words = [path, model, *(word for each in settings for word in ("--set", each))]
    return export_sky(plan, words) if target == "sky" else export_slurm(plan, words)


def _say_megatron(plan: Plan, graph: OpGraph, output: str | None) -> str:
    from graphplan.export.megatron import export_megatron, render_arguments, render_yaml

    words = export_megatron(plan, graph)
    is_yaml = output is not None and output.endswith((".yaml", ".yml"))
    return render_yaml(words) if is_yaml else render_arguments(words)


def _fill(
    plan: Plan, graph: OpGraph, target: str, model: str, settings: tuple[str, ...], folder: Path
) -> str:
    if target == "torch":
        from graphplan.export.torch import export_torch

        return export_torch(plan, graph, model, parse_settings(settings), folder)
    if target == "torchtitan":
        from graphplan.export.torchtitan import export_torchtitan

        return export_torchtitan(plan, graph, folder)
    from graphplan.export.deepspeed import export_deepspeed

    return export_deepspeed(plan, graph, folder)
