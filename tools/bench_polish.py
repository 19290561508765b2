"""What CP-SAT adds to the `graph` planner's local search: the step before and after polishing.

    python -m tools.bench_polish vgg16,models,families --gpus 8,16,32 --json rows.json

`vgg16` is the profiled workload, `models` are examples/dlrm.py and candle_uno.py, estimated, and
`families` the graphs of tools/families.py; all on the Summit cluster. Steps are evaluated. Time is
not limited: the local search ends when it has spent what it may, and asks no other planner.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.partition.answer import Request
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.localsearch import Evaluate
from graphplan.partition.drafts.scene import Draft
from graphplan.partition.graph import GraphSearch
from graphplan.planner.evaluate import make_confirmer, make_evaluator
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import pose_problem
from tools.bench_graphpipe import EXAMPLES, SAMPLES_PER_GPU, parse_numbers
from tools.bench_partition import read_graph
from tools.families import RECIPES
from tools.synthetic import pose_recipe

WORKLOADS = Path(__file__).resolve().parents[1] / "profiles" / "workloads"


class WatchedSearch(GraphSearch):
    """A search that notes what it had before polishing."""

    def __init__(self, problem: Problem, request: Request) -> None:
        super().__init__(problem, request)
        self.before_s, self.polishing_s = float("nan"), 0.0

    def _polish(self, appraiser: Appraiser, evaluate: Evaluate, drafts: list[Draft]) -> None:
        self.before_s, start = self.chooser.step_s, time.process_time()
        super()._polish(appraiser, evaluate, drafts)
        self.polishing_s = time.process_time() - start


def main() -> int:
    """Run all problems, print and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", help="of vgg16, models, families")
    parser.add_argument("--gpus", type=parse_numbers, default=[8, 16, 32])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for part in args.parts.split(","):
        for name, gpus, problem in pose_all(part, args.gpus):
            row = {"problem": name, "gpus": gpus, **measure(problem)}
            rows.append(row)
            print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows else 1


def pose_all(part: str, counts: list[int]) -> Iterator[tuple[str, int, Problem]]:
    """The problems of a part."""
    if part == "families":
        for name, describe in RECIPES.items():
            for gpus in counts:
                cluster = find_cluster("summit", gpus=gpus)
                yield name, gpus, pose_recipe(describe(), cluster, batch_size=4 * gpus)
        return
    for name in ["vgg16"] if part == "vgg16" else ["dlrm", "candle_uno"]:
        for gpus in counts:
            yield name, gpus, pose_model(name, gpus)


def pose_model(name: str, gpus: int) -> Problem:
    """A profiled workload or an example, on the Summit cluster."""
    cluster = find_cluster("summit", gpus=gpus)
    if name == "vgg16":
        path = WORKLOADS / f"profiled-pipedream-{name}.json"
        graph, tables = read_graph(path, cluster.types)
        return pose_problem(graph, cluster, SearchOptions(batch_size=64 * gpus), tables=tables)
    from graphplan.frontend import load_model_file, trace_model_file

    graph = trace_model_file(load_model_file(str(EXAMPLES / f"{name}.py"))).graph
    options = SearchOptions(batch_size=SAMPLES_PER_GPU[name] * gpus)
    return pose_problem(graph, cluster, options)


def measure(problem: Problem) -> dict[str, Any]:
    """Steps before and after, and processor seconds."""
    cost = CostModel(problem)
    request = Request(
        evaluate=make_evaluator(cost),
        confirm=make_confirmer(cost),
        time_limit_s=2.0,
        started_s=time.perf_counter() + 1e6,
    )
    start = time.process_time()
    search = WatchedSearch(problem, request)
    search.run()
    return {
        "before_s": search.before_s,
        "after_s": search.chooser.step_s,
        "gain_percent": round(100 * (search.before_s / search.chooser.step_s - 1), 2),
        "bound_s": search.chooser.bound.step_s,
        "cpu_s": round(time.process_time() - start, 1),
        "polishing_s": round(search.polishing_s, 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
