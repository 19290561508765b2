"""GraphPipe's models, a sweep over branches and a scale curve, for the planners side by side.

    python -m tools.bench_graphpipe models --gpus 4,8,16,32 --shrink 16 --json models.json
    python -m tools.bench_graphpipe branches --json branches.json
    python -m tools.bench_graphpipe scale --time-limit 60 --json scale.json

`models` captures examples/mmt.py, dlrm.py and candle_uno.py and estimates them on the Summit
cluster; the batch grows with the GPUs. `step_s` is simulated with the true dependencies and our
schedules; `sequential_s` is the same plan when every stage also waits for the one before it;
`published_s` is what PipeDream's planner does as published: the least bottleneck, run in 1F1B with
such dependencies. `over_` columns divide the best of `chain` and `downset` by `step_s`.
`branches` and `scale` use synthetic models (tools/synthetic.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.errors import GraphplanError
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.planner.contest import Contest, run_through
from graphplan.planner.judge import judge_stages
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import pose_problem
from graphplan.planner.search import PlanSearch, read_search
from tools.bench_partition import simulate_sequentially
from tools.synthetic import describe_mmt, pose_recipe

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAMPLES_PER_GPU = {"mmt": 32, "dlrm": 256, "candle_uno": 1024}
SOLVERS = ("chain", "downset", "graphpipe", "graph")
SEQUENTIAL = ("chain", "downset")
"""Planners whose plans count as sequential."""
SCALE = (
    (1000, 64),
    (2000, 64),
    (5000, 64),
    (10000, 64),
    (10000, 256),
    (10000, 1024),
    (10000, 4096),
)
"""Ops and devices."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part, print its rows, write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=["models", "branches", "scale"])
    parser.add_argument("--gpus", type=parse_numbers, default=[4, 8, 16, 32])
    parser.add_argument("--branches", type=parse_numbers, default=[2, 4, 8, 16])
    parser.add_argument("--models", default=",".join(SAMPLES_PER_GPU))
    parser.add_argument("--shrink", type=int, default=1, help="divides the samples per GPU")
    parser.add_argument("--effort", type=float, default=1.0, help="seconds for each planner")
    parser.add_argument("--scale", type=parse_points, default=SCALE, help="ops x devices, …")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    parts = {"models": run_models, "branches": run_branches, "scale": run_scale}
    rows = []
    for row in parts[args.part](args):
        rows.append(row)
        print(" ".join(f"{key}={show(value)}" for key, value in row.items()), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows else 1


def parse_numbers(text: str) -> list[int]:
    """`4,8` -> [4, 8]."""
    return [int(number) for number in text.split(",")]


def parse_points(text: str) -> tuple[tuple[int, int], ...]:
    """`1000x64,10000x1024` -> ((1000, 64), (10000, 1024))."""
    pairs = (point.split("x") for point in text.split(","))
    return tuple((int(ops), int(devices)) for ops, devices in pairs)


def show(value: object) -> str:
    """A short text."""
    return format(value, ".5g") if isinstance(value, float) else str(value)


def run_models(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Captured models on growing clusters."""
    from graphplan.frontend import load_model_file, trace_model_file

    for name in args.models.split(","):
        graph = trace_model_file(load_model_file(str(EXAMPLES / f"{name}.py"))).graph
        for gpus in args.gpus:
            batch_size = SAMPLES_PER_GPU[name] // args.shrink * gpus
            options = SearchOptions(batch_size=batch_size)
            problem = pose_problem(graph, find_cluster("summit", gpus=gpus), options)
            point = {"model": name, "gpus": gpus, "batch_size": batch_size}
            yield from compare(point, problem, args.effort)


def run_branches(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The same 32 transformer layers in more and more branches, on 32 GPUs."""
    for branches in args.branches:
        recipe = describe_mmt(branches=branches, layers=32 // branches)
        batch_size = 256 // args.shrink
        problem = pose_recipe(recipe, find_cluster("summit", gpus=32), batch_size=batch_size)
        point = {"branches": branches, "gpus": 32, "batch_size": batch_size}
        yield from compare(point, problem, args.effort)


def compare(point: dict[str, Any], problem: Problem, effort: float) -> Iterator[dict[str, Any]]:
    """One row a planner, with its throughput over that of the best sequential plan."""
    rows = [point | measure(problem, solver, effort) for solver in SOLVERS]
    plans = [row for row in rows if row["solver"] in SEQUENTIAL and row["step_s"] is not None]
    for row in rows:
        if row["step_s"] is not None and plans:
            for name in ("published", "sequential", "step"):
                key = f"{name}_s"
                found = [plan[key] for plan in plans if plan.get(key) is not None]
                row[f"over_{name}"] = min(found) / row["step_s"] if found else None
        yield row


def measure(problem: Problem, solver: str, effort: float) -> dict[str, Any]:
    """Solve, schedule and simulate; the seconds are the planner's own."""
    cost = CostModel(problem)
    row: dict[str, Any] = {"solver": solver, "step_s": None, "sequential_s": None}
    started, cpu = time.perf_counter(), time.process_time()
    search = PlanSearch(cost, SearchOptions(planner=solver, effort=effort, baselines=False))
    try:
        ready = search.finish(read_search(search.run(), None))
    except GraphplanError as error:
        return row | {"note": type(error).__name__}
    row["seconds"] = time.perf_counter() - started
    row["cpu_seconds"] = time.process_time() - cpu
    row |= {
        "bound_s": search.bound.step_s,
        "step_s": ready.prediction.step_s,
        "sequential_s": simulate_sequentially(ready.priced, "auto"),
    }
    if solver == "chain":
        row["published_s"] = plan_as_published(problem, solver, effort)
    row["samples_per_s"] = problem.training.batch_size / row["step_s"]
    row["stages"] = len(search.stages.stages)
    row["depth"] = max(search.stages.heights) + 1
    return row


def plan_as_published(problem: Problem, solver: str, effort: float) -> float | None:
    """Step seconds of a sequential planner as published: the least bottleneck for every micro-batch
    size, run in 1F1B with every stage after the one before it; the best size counts."""
    steps = []
    for size in problem.micro_batch_sizes:
        only = dataclasses.replace(problem, micro_batch_sizes=(size,))
        cost = CostModel(only)
        options = SearchOptions(planner=solver, effort=effort)
        contest = Contest(cost, options, judge=Bottleneck(cost))
        run_through(contest.ask(solver))
        best = contest.merge().best
        if best is not None:
            steps.append(simulate_sequentially(cost.price_stages(best), "1f1b"))
    return min(steps, default=None)


class Bottleneck:
    """Judges by the slowest stage or transfer, as the published planners do."""

    is_step, searched = False, False

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost

    def judge(self, stages: StageGraph) -> float:
        """Seconds of a batch on it."""
        return measure_bottleneck(self.cost, stages)


def measure_bottleneck(cost: CostModel, stages: StageGraph) -> float:
    """Seconds of a batch on the busiest stage or transfer, warm-up and drain left out; infinity
    where 1F1B does not fit."""
    if judge_stages(cost, stages, objective="memory") == math.inf:
        return math.inf
    priced = cost.price_stages(stages)
    busy = [
        price.closing_s + priced.num_micro_batches(s) * (price.forward_s + price.backward_s)
        for s, price in enumerate(priced.stages)
    ]
    busy += [
        priced.num_micro_batches(each.src) * sum(message.seconds for message in each.messages)
        for each in priced.transfers
    ]
    return max(busy)


def run_scale(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seconds and memory of `graph` against ops and devices."""
    for ops, devices in args.scale:
        recipe = describe_mmt(branches=8, layers=ops // 16)
        cluster = find_cluster("dgx-a100", gpus=devices)
        problem = pose_recipe(recipe, cluster, batch_size=2 * devices)
        row: dict[str, Any] = {"ops": problem.num_nodes, "devices": devices}
        started, cpu = time.perf_counter(), time.process_time()
        options = SearchOptions(planner="graph", effort=args.effort, baselines=False)
        search = PlanSearch(CostModel(problem), options)
        step_s = search.finish(read_search(search.run(), None)).prediction.step_s
        row |= {"step_s": step_s, "gap": step_s / search.bound.step_s - 1}
        row["seconds"] = time.perf_counter() - started
        row["cpu_seconds"] = time.process_time() - cpu
        row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield row


if __name__ == "__main__":
    raise SystemExit(main())
