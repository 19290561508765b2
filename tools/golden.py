"""Golden plans: what a dozen searches find, as text that a review can read.

    python -m tools.golden            prints what has changed, exit code 1 if anything has
    python -m tools.golden --update   writes tests/golden/ anew

The models are synthetic (tools/synthetic.py, tools/families.py), so that neither capture nor the
costs of ops have a part in it: what changes here was changed by the search, the schedules or the
cost of stages. A search is deterministic, so that any difference is one of the code.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.nouns.stages import Stage
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import PlanSearch, read_search
from tools.families import describe_layered, describe_nasnet
from tools.synthetic import (
    Recipe,
    describe_candle,
    describe_dlrm,
    describe_mmt,
    pose_recipe,
)

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "golden"


class Case(NamedTuple):
    """A search: the model, the cluster and its devices, the batch, further options."""

    describe: Callable[[], Recipe]
    cluster: str
    gpus: int
    batch_size: int
    options: dict[str, Any] = {}


CASES: dict[str, Case] = {
    "chain-nvlink": Case(lambda: describe_mmt(branches=1, layers=12), "dgx-a100", 4, 64),
    "chain-pcie": Case(lambda: describe_mmt(branches=1, layers=12), "pcie-8", 8, 32),
    "chain-nodes": Case(lambda: describe_mmt(branches=1, layers=12), "summit", 12, 48),
    "mmt": Case(lambda: describe_mmt(branches=4, layers=3), "pcie-8", 8, 32),
    "mmt-wide": Case(lambda: describe_mmt(branches=7, layers=2), "dgx-a100", 8, 16),
    "dlrm": Case(lambda: describe_dlrm(dense=4, sparse=4), "dgx-a100", 8, 128),
    "dlrm-pcie": Case(lambda: describe_dlrm(dense=4, sparse=4), "pcie-8", 8, 128),
    "candle": Case(lambda: describe_candle(branches=5, layers=3), "dgx-h100", 8, 256),
    "nasnet": Case(lambda: describe_nasnet(cells=3), "pcie-8", 4, 16),
    "layered": Case(lambda: describe_layered(width=4, depth=6), "summit", 6, 24),
    "stash": Case(lambda: describe_mmt(branches=2, layers=4), "pcie-8", 4, 16, {"policy": "stash"}),
    "memory": Case(
        lambda: describe_mmt(branches=2, layers=4), "pcie-8", 4, 16, {"objective": "memory"}
    ),
    "graphpipe": Case(
        lambda: describe_mmt(branches=4, layers=3), "pcie-8", 8, 32, {"planner": "graphpipe"}
    ),
    "1f1b": Case(
        lambda: describe_mmt(branches=1, layers=12), "pcie-8", 4, 32, {"schedule": "1f1b"}
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Compare, or write anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    args = parser.parse_args(argv)
    changed = False
    for name in args.names or CASES:
        path, found = FOLDER / f"{name}.txt", render_case(name)
        known = path.read_text() if path.exists() else ""
        if found != known:
            changed = True
            lines = difflib.unified_diff(known.splitlines(), found.splitlines(), name, name, n=1)
            print("\n".join(lines))
            if args.update:
                path.write_text(found)
    return int(changed and not args.update)


def render_case(name: str) -> str:
    """What a search finds, as text."""
    case = CASES[name]
    recipe = case.describe()
    cluster = find_cluster(case.cluster, gpus=case.gpus)
    cost = CostModel(pose_recipe(recipe, cluster, batch_size=case.batch_size))
    search = PlanSearch(cost, SearchOptions(batch_size=case.batch_size, **case.options))
    ready = search.finish(read_search(search.run(), None))
    told = " ".join(f"{key}={value}" for key, value in case.options.items())
    rivals = ", ".join(
        f"{rival} {found.prediction.step_s * 1e3:.5g} ms"
        for rival, found in sorted(search.rivals.items())
    )
    return "\n".join(
        (
            f"{recipe.name}: {cost.problem.num_nodes} nodes, {case.cluster} x {case.gpus},"
            f" batch {case.batch_size}" + (f", {told}" if told else ""),
            f"step {ready.prediction.step_s * 1e3:.5g} ms,"
            f" bound {search.contest.bound.step_s * 1e3:.5g} ms, schedule {ready.schedule}",
            f"rivals: {rivals or 'none'}",
            "",
            *_draw_stages(search),
            "",
        )
    )


def _draw_stages(search: PlanSearch) -> Iterator[str]:
    """A line for each stage: what it reads, where it runs, its micro-batch, its nodes."""
    graph, cost = search.stages, search.cost
    for s, stage in enumerate(graph.stages):
        sources = sorted({edge.src for edge in graph.edges if edge.dst == s})
        names = [cost.problem.nodes[node].name for node in cost.stage_nodes(stage)]
        span = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"
        reads = f" < {' '.join(map(str, sources))}" if sources else ""
        yield f"{s}{reads}: {_tell_devices(stage)}, {stage.micro_batch_size} samples, {span}"


def _tell_devices(stage: Stage) -> str:
    devices = " ".join(map(str, stage.devices))
    return f"[{devices}]" + (" recomputing" if stage.recompute else "")


if __name__ == "__main__":
    sys.exit(main())
