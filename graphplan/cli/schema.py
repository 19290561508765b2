"""`graphplan schema`: the JSON Schema of every file."""

from __future__ import annotations

import json

import click


@click.command(name="schema", epilog="Example: graphplan schema plan > plan.schema.json")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="The output is JSON anyway.")
def command(name: str | None, as_json: bool) -> None:
    """Print the JSON Schema of NAME: graph, table, cluster, plan, timeline or figures.

    `figures` is what `search --json` and `show --json` print. Without NAME: one object with all.
    """
    from graphplan.schema import NOUN_BY_NAME, make_schema

    shown = make_schema(name) if name else {each: make_schema(each) for each in NOUN_BY_NAME}
    click.echo(json.dumps(shown, indent=2))
