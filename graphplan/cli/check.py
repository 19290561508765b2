"""`graphplan check`: the referee's verdict on a plan."""

from __future__ import annotations

import click

from graphplan.errors import CheckFailed
from graphplan.files import read_noun
from graphplan.nouns.plan import Plan


@click.command(name="check", epilog="Example: graphplan check plan.json")
@click.argument("plan", type=str)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def command(plan: str, as_json: bool) -> None:
    """Check that PLAN is legal, fits memory and cannot deadlock.

    Exit code 0 when every rule holds, 1 when one is broken, 2 when PLAN cannot be read. The rules
    are explained in docs/referee.md.
    """
    import msgspec

    from graphplan.referee import check_plan

    given = read_noun(plan, Plan)
    verdict = check_plan(given)
    if as_json:
        found = msgspec.to_builtins(verdict.violations)
        click.echo(msgspec.json.encode({"legal": verdict.is_legal, "violations": found}).decode())
    else:
        for each in verdict.violations:
            click.echo(f"{each.rule:<16} {each.place}: {each.message}")
    if not verdict.is_legal:
        raise CheckFailed(
            f"{plan} breaks {len({each.rule for each in verdict.violations})} rule(s) in"
            f" {len(verdict.violations)} place(s).",
            remedy="docs/referee.md explains the rules; `graphplan search` writes legal plans.",
        )
    if not as_json:
        num_tasks = sum(len(line.split()) for line in given.program)
        click.echo(
            f"{plan} is legal: {len(given.stages.stages)} stages on {len(given.program)} devices,"
            f" {num_tasks:,} instructions."
        )
