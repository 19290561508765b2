"""Every workload of a folder, every planner, every number of devices: values, bounds, seconds.

    python -m tools.bench_partition tools/workloads --devices 4,8 --solvers auto,downset,ilp \\
        --time-limit 10 --json rows.json

Reads `graphplan/maxload-workload` files (value: the largest load), `graphplan/profiled-workload`
and `graphplan/graph` files (value: the simulated step time; times of the latter are estimated).
Each row runs in a process of its own; `seconds` is the planner's own time, `peak_bytes` what its
process took. The referee judges every answer; a row that it refuses says so and the exit code is 1.

`chain:sequential` and the like are the same stages with artificial dependencies between neighbours,
as the published sequential planners execute them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.errors import CheckFailed, GraphplanError, InvalidFile
from graphplan.files import read_bytes, read_header, read_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.stages import StageGraph
from graphplan.nouns.table import ProfileTable
from graphplan.partition.maxload.maxload import PartsAnswer
from graphplan.planner.collect import collect_plan, schedule_prices
from graphplan.planner.options import PLANNER_NAMES, SearchOptions
from graphplan.planner.pose import pose_problem
from graphplan.planner.search import PlanSearch, read_search
from graphplan.planner.sequential import chain_stages
from tools.maxload.referee import check_parts
from tools.workloads.profiled import build_graph, build_table, guess_batch_size
from tools.workloads.workload import MaxLoadWorkload, ProfiledWorkload, pose_maxload, read_workload

MAXLOAD_SOLVERS = ("auto", "downset", "ilp", "ilp-cbc")
SEQUENTIAL = ":sequential"
SCHEDULE_EFFORT = 0.25
"""Counted work for the order of the tasks of a sequential pipeline."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One row to be."""

    path: Path
    devices: int
    solver: str
    time_limit_s: float
    effort: float
    seed: int
    cluster: str
    batch_per_device: int
    schedule: str
    optimizer: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run all jobs, print the table, write the rows."""
    args = parse_arguments(argv)
    jobs = list(list_jobs(args))
    rows = []
    for number, job in enumerate(jobs):
        row = run_alone(job)
        rows.append(row)
        print(format_row(row), flush=True)
        if args.json:
            write_rows(args, rows, done=number + 1 == len(jobs))
    illegal = [row for row in rows if row["verdict"] not in ("legal", "none")]
    print(f"{len(rows)} rows, {len(illegal)} refused by the referee")
    return 1 if illegal or not rows else 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Bench planners on a folder of workloads.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=parse_numbers, default=[4, 8, 16, 32])
    parser.add_argument("--solvers", type=lambda text: text.split(","), default=["auto"])
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of max-load rows")
    parser.add_argument("--effort", type=float, default=1.0, help="counted work of a plan")
    parser.add_argument("--match", default="", help="only files whose name contains this")
    parser.add_argument("--cluster", default="summit")
    parser.add_argument("--batch-per-device", type=int, default=64)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--schedule", default="auto", help="order of the tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    for name in args.solvers:
        if name.removesuffix(SEQUENTIAL) not in {*PLANNER_NAMES, *MAXLOAD_SOLVERS}:
            parser.error(
                f"unknown solver {name!r}; known: {', '.join([*PLANNER_NAMES, 'ilp-cbc'])}"
            )
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    return args


def parse_numbers(text: str) -> list[int]:
    """`4,8` -> [4, 8]."""
    return [int(number) for number in text.split(",")]


def list_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Rows in the order of the table; solvers that do not apply to a file are left out."""
    for path in sorted(args.folder.glob("*.json")):
        kind = read_header(read_bytes(path), name=str(path)).format
        if args.match not in path.name or kind == "graphplan/table":
            continue
        for devices in args.devices:
            for solver in args.solvers:
                is_load = kind == "graphplan/maxload-workload"
                if is_load and solver not in MAXLOAD_SOLVERS:
                    continue
                if not is_load and solver.removesuffix(SEQUENTIAL) not in PLANNER_NAMES:
                    continue
                yield Job(
                    path=path,
                    devices=devices,
                    solver=solver,
                    time_limit_s=args.time_limit,
                    effort=args.effort,
                    seed=args.seed,
                    cluster=args.cluster,
                    batch_per_device=args.batch_per_device,
                    schedule=args.schedule,
                    optimizer=args.optimizer,
                )


def run_alone(job: Job) -> dict[str, Any]:
    """The row of a job, from a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(run_job, job).result()


def run_job(job: Job) -> dict[str, Any]:
    """The row of a job."""
    row: dict[str, Any] = {
        "workload": job.path.stem,
        "devices": job.devices,
        "solver": job.solver,
        "value_s": None,
        "bound_s": None,
        "optimum_s": None,
        "seconds": None,
        "cpu_seconds": None,
        "peak_bytes": None,
        "proven": False,
        "verdict": "none",
        "note": "",
    }
    try:
        row |= run_maxload(job) if is_maxload(job.path) else run_plan(job)
    except CheckFailed as error:
        row |= {"verdict": error.message}
    except GraphplanError as error:
        row |= {"note": f"{type(error).__name__}: {error.message}"}
    row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """As fields of a row."""
        return {
            "seconds": time.perf_counter() - self.wall,
            "cpu_seconds": time.process_time() - self.cpu,
        }


def is_maxload(path: Path) -> bool:
    """Whether a file asks for the smallest largest load."""
    return read_header(read_bytes(path), name=str(path)).format == "graphplan/maxload-workload"


# -- max load --------------------------------------------------------------------------------------


def run_maxload(job: Job) -> dict[str, Any]:
    """Solve a max-load file and let the referee judge."""
    workload = read_workload(job.path)
    assert isinstance(workload, MaxLoadWorkload)
    problem = pose_maxload(workload, job.devices)
    optimum_s = workload.optimum_s_by_devices.get(str(job.devices))
    clock = Clock()
    try:
        answer = solve_load(job, problem)
    except GraphplanError as error:
        note = f"{type(error).__name__}: {error.message}"
        return {"optimum_s": optimum_s, "note": note, **clock.read()}
    return {
        "value_s": answer.value_s,
        "bound_s": answer.bound_s,
        "optimum_s": optimum_s,
        **clock.read(),
        "proven": answer.proven,
        "verdict": str(check_parts(problem, answer)),
        "note": answer.note,
    }


def solve_load(job: Job, problem: Any) -> PartsAnswer:
    """The answer of one of the max-load solvers."""
    from graphplan.partition import ilp
    from tools.maxload import cbc, default, downset

    limit = "effort" if job.solver == "ilp" else "time_limit_s"
    options: dict[str, Any] = {limit: job.time_limit_s, "seed": job.seed}
    modules: dict[str, Any] = {"auto": default, "downset": downset, "ilp": ilp, "ilp-cbc": cbc}
    answer: PartsAnswer = modules[job.solver].solve_maxload(problem, **options)
    return answer


# -- plans -----------------------------------------------------------------------------------------


def run_plan(job: Job) -> dict[str, Any]:
    """Plan for a graph, schedule, simulate, and let the referee judge the whole plan."""
    cluster = find_cluster(job.cluster, gpus=job.devices)
    planner = job.solver.removesuffix(SEQUENTIAL)
    options = SearchOptions(
        batch_size=job.batch_per_device * job.devices,
        planner=planner,
        schedule=job.schedule,
        optimizer=job.optimizer,
        effort=job.effort,
        seed=job.seed,
        baselines=False,
    )
    graph, tables = read_graph(job.path, cluster.types)
    cost = CostModel(pose_problem(graph, cluster, options, tables=tables))
    clock = Clock()
    search = PlanSearch(cost, options)
    ready = search.finish(read_search(search.run(), None))
    spent = clock.read()
    bound = search.contest.bound
    plan = collect_plan(
        graph, cost, search.stages, ready, options, bound=bound, baselines={}, costs="measured"
    )
    value_s = plan.prediction.step_s
    if job.solver.endswith(SEQUENTIAL):
        value_s = simulate_sequentially(ready.priced, job.schedule)
    return {
        "value_s": value_s,
        "bound_s": plan.bound.step_s,
        **spent,
        "verdict": "legal",
        "note": describe_stages(search.stages),
    }


def read_graph(path: Path, types: Sequence[Any]) -> tuple[OpGraph, dict[str, ProfileTable] | None]:
    """An op graph with tables of a profiled file, or without (estimated) of a captured one."""
    header = read_header(read_bytes(path), name=str(path))
    if header.format == "graphplan/graph":
        return read_noun(path, OpGraph), None
    workload = read_workload(path)
    if not isinstance(workload, ProfiledWorkload):
        raise InvalidFile(f"{path} cannot be planned for.", remedy="Give a profiled workload.")
    measured = guess_batch_size(workload)
    graph = build_graph(workload, measured_batch_size=measured)
    tables = {
        kind.name: build_table(workload, graph, kind, measured_batch_size=measured)
        for kind in types
    }
    return graph, tables


def simulate_sequentially(priced: PricedStages, schedule: str) -> float:
    """Step seconds when every stage also waits for the one before it."""
    chained = chain_stages(priced)
    ready = schedule_prices(chained, schedule=schedule, effort=SCHEDULE_EFFORT)
    return ready.prediction.step_s


def describe_stages(graph: StageGraph) -> str:
    """Stages as replicas x micro-batch size."""
    stages = graph.stages
    depth = max(graph.heights) + 1
    widths = " ".join(
        f"{len(s.devices)}x{s.micro_batch_size}{'r' if s.recompute else ''}" for s in stages[:12]
    )
    more = " ..." if len(stages) > 12 else ""
    return f"{len(stages)} stages, depth {depth}: {widths}{more}"


# -- output ----------------------------------------------------------------------------------------


def format_row(row: dict[str, Any]) -> str:
    """One line of the table."""

    def show(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    over = None
    if row["value_s"] is not None and row["optimum_s"]:
        over = 100 * (row["value_s"] / row["optimum_s"] - 1)
    elif row["value_s"] is not None and row["bound_s"]:
        over = 100 * (row["value_s"] / row["bound_s"] - 1)
    of = "optimum" if row["optimum_s"] else "bound"
    left = f"{row['workload']:40} {row['devices']:5} {row['solver']:18}"
    value = f"{show(row['value_s'], '.6f'):>11} {show(over, '+9.4f'):>10}% over {of:7}"
    spent = f"{show(row['seconds'], '.2f'):>8} s {(row['peak_bytes'] or 0) / 2**20:6.0f} MiB"
    proven = "proven" if row["proven"] else ""
    return f"{left} {value} {spent} {proven:6} {row['verdict']:6} {row['note'][:90]}"


def write_rows(args: argparse.Namespace, rows: list[dict[str, Any]], *, done: bool) -> None:
    """All rows so far, with what was asked."""
    asked = {key: str(value) for key, value in vars(args).items()}
    args.json.write_text(json.dumps({"asked": asked, "done": done, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
