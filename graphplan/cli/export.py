"""`graphplan export`: a plan for another runtime."""

from __future__ import annotations

import json
from pathlib import Path

import click

from graphplan.cli.options import load_graph, parse_settings
from graphplan.errors import InvalidOption, UnknownName
from graphplan.files import read_noun, write_bytes
from graphplan.nouns.plan import Plan

TARGETS = ("deepspeed", "dot", "json", "megatron", "torch")
NEED_MODEL = ("deepspeed", "megatron", "torch")


@click.command(
    name="export",
    epilog="Example: graphplan export plan.json --to torch --model examples/gpt.py -o exported",
)
@click.argument("plan", type=str)
@click.option("--to", "target", required=True, help=", ".join(TARGETS))
@click.option("--model", help="The model file or graph.json of the plan.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in search.")
@click.option("-o", "--output", help="File (or folder, for torch); default: standard output.")
def command(
    plan: str, target: str, model: str | None, settings: tuple[str, ...], output: str | None
) -> None:
    """Write PLAN for another runtime, or say why that runtime cannot run it."""
    if target not in TARGETS:
        raise UnknownName("export target", target, TARGETS)
    given = read_noun(plan, Plan)
    if target in NEED_MODEL and model is None:
        raise InvalidOption(
            f"Exporting to {target} needs the modules of the model.",
            remedy=f"Add --model with the model of the plan ({given.model.name}).",
        )
    if target == "torch":
        assert model is not None
        click.echo(_export_folder(given, model, settings, output or "exported"))
        return
    text = _render(given, target, model, settings)
    if output:
        write_bytes(text.encode(), Path(output))
        click.echo(f"written to {output}")
    else:
        click.echo(text)


def _render(plan: Plan, target: str, model: str | None, settings: tuple[str, ...]) -> str:
    if target == "dot":
        from graphplan.report.dot import render_dot

        return render_dot(plan)
    if target == "json":
        from graphplan.export.flat import export_flat

        return json.dumps(export_flat(plan), indent=1)
    assert model is not None
    graph = load_graph(model, parse_settings(settings))
    if graph.fingerprint != plan.model.fingerprint:
        raise InvalidOption(
            f"{model} has the fingerprint {graph.fingerprint}, the plan {plan.model.fingerprint}.",
            remedy="Give the model file and settings from which the plan was made.",
        )
    if target == "megatron":
        from graphplan.export.megatron import export_megatron

        return json.dumps(export_megatron(plan, graph), indent=1)
    from graphplan.export.deepspeed import export_deepspeed

    return json.dumps(export_deepspeed(plan, graph), indent=1)


def _export_folder(plan: Plan, model: str, settings: tuple[str, ...], output: str) -> str:
    from graphplan.export.torch import export_torch

    return export_torch(plan, model, parse_settings(settings), Path(output))
