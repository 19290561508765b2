"""`graphplan learn`: a cost model from measured tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphplan.files import write_noun

if TYPE_CHECKING:
    from graphplan.cost.learned import Progress
    from graphplan.nouns.learned import LearnedCosts, Part

MOST_KINDS = 12


@click.command(
    name="learn",
    epilog="Examples: graphplan learn -o cost.json;"
    " graphplan learn graph.json table.json lab.json.gz -o cost.json;"
    " graphplan search model.py --costs learned:cost.json",
)
@click.argument("files", nargs=-1)
@click.option("--hold-out", metavar="MODEL,…", help="Models to leave out, and to judge by.")
@click.option("--seed", default=0, show_default=True, help="Seed of split and training.")
@click.option(
    "--epochs", default=150, show_default=True, type=click.IntRange(1), help="Most epochs."
)
@click.option("-o", "--output", default="cost.json", show_default=True, help="Where to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the model card as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def command(
    files: tuple[str, ...],
    hold_out: str | None,
    seed: int,
    epochs: int,
    output: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train a cost model on FILES: cost sets, or graphs with their measured tables.

    Without files it learns from the measurements that come with graphplan (one CPU thread).
    """
    from graphplan.cost.training import read_training

    found = read_training(files or list_shipped())
    from graphplan.cost.learned import learn_costs

    with show_progress(enabled=not (quiet or as_json)) as report:
        learned = learn_costs(
            found,
            hold_out=[name.strip() for name in hold_out.split(",")] if hold_out else (),
            seed=seed,
            epochs=epochs,
            report=report,
        )
    write_noun(learned, output)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(learned.card))
    elif not quiet:
        print_card(learned, output)


def list_shipped() -> list[Path]:
    """The cost sets that are installed with graphplan."""
    import importlib.resources

    folder = Path(str(importlib.resources.files("graphplan_profiles"))) / "costs"
    return sorted(folder.glob("*.json.gz"))


@contextlib.contextmanager
def show_progress(*, enabled: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar with the error so far on a terminal, nothing in a pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("learning", total=None)

        def report(progress: Progress) -> None:
            bar.update(
                task,
                total=progress.num_steps,
                completed=progress.num_done,
                description=f"{progress.stage}, error {progress.error:.3f}",
            )

        yield report


def print_card(learned: LearnedCosts, output: str) -> None:
    """What was learned from what, and how good it is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    card, console = learned.card, Console(highlight=False)
    console.print(
        f"[bold]{learned.predictor}[/] trained on {len(card.training.models)} models"
        f" ({card.training.num_units:,} timed units) on {escape(', '.join(card.devices))}"
        f" in {card.training_s:.0f} s, seed {card.seed}"
    )
    console.print(f"[dim]{escape(card.why)}; the better one is used[/]")
    scores = Table("part", "models", "predictor", "op error", "step error", "worst step")
    parts = {"training": card.training, "validation": card.validation, "held out": card.held_out}
    for name, part in parts.items():
        for predictor, score in part.score_by_predictor.items() if part else ():
            assert part is not None
            scores.add_row(
                name, str(len(part.models)), predictor,
                *(f"{value:.1%}" for value in (score.op_error, score.step_error)),
                f"{score.worst_step_error:.1%}",
            )  # fmt: skip
    console.print(scores)
    console.print(_tabulate_kinds(card.held_out or card.validation, learned.predictor))
    console.print(f"written to [bold]{output}[/]; use it with --costs learned:{output}")


def _tabulate_kinds(part: Part, predictor: str) -> object:
    from rich.markup import escape
    from rich.table import Table

    kinds = Table("op", "units", f"{predictor}: median error", "calibrated roofline")
    for kind in part.kinds[:MOST_KINDS]:
        errors = kind.op_error_by_predictor
        kinds.add_row(
            escape(kind.kind),
            str(kind.num_units),
            f"{errors[predictor]:.1%}",
            f"{errors['roofline']:.1%}",
        )
    return kinds
