"""Tables of docs/, made again in the form that they have there.

python tools/make_tables.py examples    docs/results/examples.md: searches every example
python tools/make_tables.py delays      docs/staleness.md: delays of graphs and chains
python tools/make_tables.py rates       docs/staleness.md: stable learning rates

"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from graphplan.files import read_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.report.figures import BASELINE_NAMES, Figures
from graphplan.schedule.steady import order_steady
from graphplan.staleness.bounds import chain_delay, graph_delay
from graphplan.staleness.delays import count_needed, measure_delays
from graphplan.staleness.shapes import make_shape
from graphplan.staleness.stability import predicted_limit

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ("mmt", "gpt", "clip", "dlrm", "candle_uno", "resnet", "unet", "t5")
BRANCHES = ((2, 2), (2, 4), (4, 2), (4, 3), (7, 4))
"""Numbers of branches and of stages in each."""


def write_rows(rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; the first row is its head."""
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield f"|{'---|' * len(row)}"


# -- examples ----------------------------------------------------------------------------------


def list_examples() -> Iterator[Sequence[str]]:
    """A row for every example on eight GPUs, as soon as it is known."""
    over = [f"over {name}" for name in BASELINE_NAMES.values()]
    yield ["model", "stages", "step", "over the bound, at most", *over]
    for name in EXAMPLES:
        figures, plan = search_example(name)
        others = [figures.baselines.get(key) for key in BASELINE_NAMES]
        yield [
            f"[{name}.py](examples/{name}.py)",
            str(len(plan.stages.stages)),
            f"{figures.step_s * 1e3:,.1f} ms",
            f"{figures.gap:.1%}",
            *(f"{other_s / figures.step_s:.2f}x" if other_s else "-" for other_s in others),
        ]


def search_example(name: str) -> tuple[Figures, Plan]:
    """What `graphplan search --gpus 8 --json` prints of an example, and the plan that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        words = ["search", str(ROOT / "examples" / f"{name}.py"), "--gpus", "8", "--json"]
        run = subprocess.run(
            [sys.executable, "-m", "graphplan", *words, "-o", str(path)],
            stdout=subprocess.PIPE,
            check=True,
        )
        return msgspec.json.decode(run.stdout, type=Figures), read_noun(path, Plan)


# -- staleness ---------------------------------------------------------------------------------


def list_delays() -> Iterator[Sequence[str]]:
    """Branches that meet in a last stage, against the chain of the same stages."""
    head = ["graph", "n", "D", "largest delay", "nD - n/2", "the same stages as a chain"]
    yield [*head, "stable lr L, graph / chain"]
    for branches, length in BRANCHES:
        count, depth = branches * length + 1, length + 1
        edges = [
            (first + i, first + i + 1 if i + 1 < length else count - 1)
            for first in range(0, count - 1, length)
            for i in range(length)
        ]
        policy = WeightPolicy(name="stash", warmups=make_shape(edges, num_stages=count).heights)
        shape = make_shape(edges, num_stages=count, num_micro_batches=count_needed(policy))
        delays = measure_delays(shape, order_steady(shape, policy.warmups), policy)
        what = " stages and a last stage" if (branches, length) == BRANCHES[0] else ""
        yield [
            f"{branches} branches of {length}{what}",
            str(count),
            str(depth),
            str(delays.largest),
            f"{graph_delay(count, depth):g}",
            str(chain_delay(count)),
            f"{predicted_limit(depth - 1, 0):.3f} / {predicted_limit(count - 1, 0):.3f}",
        ]


def list_rates() -> Iterator[Sequence[str]]:
    """Stable learning rates of delayed and of extrapolated weights, by momentum."""
    momenta = (0.0, 0.9, 0.99)
    head = [[f"b = {b:g}, delayed", "predicted"] for b in momenta]
    yield ["delay τ", *(cell for pair in head for cell in pair)]
    for lag in range(4):
        limits = [predicted_limit(lag, d, b) for b in momenta for d in (0, lag)]
        yield [str(lag), *(_round(limit) for limit in limits)]


def _round(limit: float) -> str:
    """Three digits, four places at most."""
    if round(limit, 6) >= 1:
        return f"{limit:.3g}"
    return f"{limit:.{3 if limit >= 0.0995 else 4}f}"


def main() -> None:
    """Print one table, with what it was made by."""
    tables = {"examples": list_examples, "delays": list_delays, "rates": list_rates}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=tables, nargs="?", default="examples")
    name = parser.parse_args().table
    today = datetime.datetime.now(tz=datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    print(f"(`python tools/make_tables.py {name}`, {today}, {machine})\n")
    for line in write_rows(tables[name]()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
