"""Runtime benchmarks: beside torch.distributed.pipelining, emulated, predicted against measured.

    python tools/bench_runtime.py torch      # 1F1B on a chain, same stages, same processes
    python tools/bench_runtime.py emulate    # 8 ranks: graph plan against sequential plans
    python tools/bench_runtime.py predict    # 2 ranks of real compute: profile, simulate, run

Each prints a table; --json FILE writes the figures. Times are compared within one run only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from graphplan.files import read_noun, write_noun
from graphplan.nouns.plan import Plan
from graphplan.planner.collect import schedule_prices
from graphplan.planner.sequential import chain_stages

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.watch_load import Watch, wait_calm

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


# -- beside torch ----------------------------------------------------------------------------------

CASES: dict[str, dict[str, int]] = {
    "tiny stages (4 x 8)": {"width": 8, "rows": 4, "elementwise": 0},
    "1 MB tensors (64 x 4096), elementwise": {"width": 4096, "rows": 64, "elementwise": 1},
    "1 MB tensors (512 x 512), linear": {"width": 512, "rows": 512, "elementwise": 0},
}
NUM_RANKS, NUM_MICRO_BATCHES = 2, 16


def compare_with_torch(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time per step and main-thread CPU time per task, torch's and ours in turn."""
    import torch.multiprocessing as spawn

    found = []
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            spawn.spawn(  # type: ignore[no-untyped-call, attr-defined]
                _measure_rank, (folder, case, arguments.rounds, arguments.steps), NUM_RANKS
            )
            parts = [json.loads(p.read_text()) for p in sorted(Path(folder).glob("*.json"))]
        row: dict[str, Any] = {"case": name}
        for key in ("step_ms", "cpu_us"):
            rounds = {side: _find_slowest(parts, side, key) for side in ("torch", "ours")}
            row |= {f"{side} {key}": statistics.median(rounds[side]) for side in rounds}
            # Of neighbours in time: other programs disturb both.
            ratios = [
                ours / theirs for ours, theirs in zip(rounds["ours"], rounds["torch"], strict=True)
            ]
            row[f"ratio {key}"] = statistics.median(ratios)
        found.append(row)
        print(
            f"{name:40s} step {row['torch step_ms']:8.2f} ms torch {row['ours step_ms']:8.2f} ours"
            f" {row['ratio step_ms']:5.2f}x   cpu/task {row['torch cpu_us']:7.1f} us torch"
            f" {row['ours cpu_us']:7.1f} ours {row['ratio cpu_us']:5.2f}x",
            flush=True,
        )
    return found


def _find_slowest(parts: list[dict[str, Any]], side: str, key: str) -> list[float]:
    """By round, the figure of the rank that took longest."""
    return [max(ranks) for ranks in zip(*(part[side][key] for part in parts), strict=True)]


def _measure_rank(rank: int, folder: str, case: dict[str, int], rounds: int, steps: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS
    )
    sides = {"torch": _make_torch(rank, case), "ours": _make_ours(rank, case)}
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for step in sides.values():
        for _ in range(5):
            step()
    for _ in range(rounds):
        for side, step in sides.items():
            dist.barrier()
            start, cpu = time.perf_counter(), time.thread_time()
            for _ in range(steps):
                step()
            times[side].append(
                ((time.perf_counter() - start) / steps, (time.thread_time() - cpu) / steps)
            )
    num_tasks = 2 * NUM_MICRO_BATCHES
    result = {
        side: {
            "step_ms": [wall * 1e3 for wall, _ in found],
            "cpu_us": [cpu * 1e6 / num_tasks for _, cpu in found],
        }
        for side, found in times.items()
    }
    Path(folder, f"rank{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _make_blocks(case: dict[str, int]) -> list[Any]:
    import torch
    from torch import nn

    class Scale(nn.Module):
        """A product with a vector of weights: little work on much data."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * self.weight)

    torch.manual_seed(0)
    width = case["width"]
    if case["elementwise"]:
        return [Scale(width) for _ in range(NUM_RANKS)]
    return [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(NUM_RANKS)]


def _make_batch(case: dict[str, int]) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(1)
    shape = (case["rows"] * NUM_MICRO_BATCHES, case["width"])
    return torch.randn(shape), torch.randn(shape)


def _make_torch(rank: int, case: dict[str, int]) -> Callable[[], None]:
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    block = _make_blocks(case)[rank]
    x, target = _make_batch(case)
    stage = PipelineStage(block, rank, NUM_RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)

    def step() -> None:
        for parameter in block.parameters():
            parameter.grad = None
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target)

    return step


def _make_ours(rank: int, case: dict[str, int]) -> Callable[[], None]:
    from torch import nn

    from graphplan.frontend import trace_module
    from graphplan_runtime import Pipeline
    from tests.processes.models import floats, mean_square
    from tests.processes.plans import assign_stages, plan_by_hand

    batch = _make_batch(case)
    inputs = floats((case["width"],), (case["width"],))
    captured = trace_module(nn.Sequential(*_make_blocks(case)), inputs, loss=mean_square)
    stage_by_op = assign_stages(captured.graph, {str(i): i for i in range(NUM_RANKS)})
    plan = plan_by_hand(
        captured.graph,
        stage_by_op,
        devices=[(i,) for i in range(NUM_RANKS)],
        batch_size=case["rows"] * NUM_MICRO_BATCHES,
        micro_batch_size=case["rows"],
    )
    pipeline = Pipeline(plan, captured)

    def step() -> None:
        for weight in pipeline.weights.values():
            weight.grad = None
        pipeline.step(batch)

    return step


# -- emulated --------------------------------------------------------------------------------------

EMULATED = {"cluster": "summit", "gpus": 8, "memory": "5GB"}
"""Memory for no more than two thirds of the model's training state: a device cannot hold it all."""
SEQUENTIAL = ("chain", "equal", "downset")
"""Planners whose plans are executed one stage after the other."""


def compare_emulated(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Simulated and emulated step times of a graph plan and of the best sequential plan."""
    from graphplan.cli.options import load_cluster
    from graphplan.frontend import load_model_file, trace_model_file
    from graphplan.planner.options import SearchOptions
    from graphplan.planner.search import search_plan

    graph = trace_model_file(load_model_file(EXAMPLES / "mmt.py")).graph
    cluster = load_cluster(EMULATED["cluster"], EMULATED["gpus"], EMULATED["memory"])  # type: ignore[arg-type]
    options = SearchOptions(batch_size=128, micro_batch_sizes=(16,), baselines=False)
    chained = [
        chain_plan(search_plan(graph, cluster, dataclasses.replace(options, planner=planner)))
        for planner in SEQUENTIAL
    ]
    plans = {
        "graph": search_plan(graph, cluster, options),
        "sequential": min(chained, key=lambda plan: plan.prediction.step_s),
    }
    found = [_emulate(name, plan, arguments) for name, plan in plans.items()]
    for key in ("simulated_s", "measured_s"):
        print(f"speed-up of the graph plan, {key[:-2]}: {found[1][key] / found[0][key]:.3f}x")
    return found


def chain_plan(plan: Plan) -> Plan:
    """The plan executed sequentially: every stage also waits for the one before it.

    Published sequential planners do so; the added dependencies carry no bytes and take no time.
    """
    chained = chain_stages(plan.prices)
    ready = schedule_prices(chained, plan.policy, effort=1.0)
    return msgspec.structs.replace(
        plan,
        prices=chained,
        program=tuple(str(ready.program).split("\n")),
        prediction=ready.prediction,
    )


def _emulate(name: str, plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        write_noun(plan, path)
        facts = call_graphplan("run", path, "--emulate", "--steps", arguments.steps)
    simulated_s, measured_s = plan.prediction.step_s, statistics.median(facts["step_s"][1:])
    tasks_s = sorted(stage.forward_s for stage in plan.prices.stages)
    row = {
        "plan": name,
        "planner": plan.provenance.planner,
        "stages": len(plan.stages.stages),
        "median_forward_s": statistics.median(tasks_s),
        "simulated_s": simulated_s,
        "measured_s": measured_s,
        "error": simulated_s / measured_s - 1,
    }
    print(
        f"{name:12s} by {row['planner']:10s} {row['stages']:2d} stages, median forward"
        f" {row['median_forward_s'] * 1e3:.1f} ms   simulated {simulated_s:.4f} s"
        f"   measured {measured_s:.4f} s   simulated is {row['error']:+.1%} off",
        flush=True,
    )
    return row


# -- predicted -------------------------------------------------------------------------------------

PREDICTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("mmt.py", ("branches=2", "layers=2", "hidden=256", "heads=4", "sequence=128")),
    ("candle_uno.py", ("branches=4", "width=1536")),
    ("candle_uno.py", ("branches=4", "width=512")),
    ("gpt.py", ("layers=4", "hidden=256", "heads=4", "vocabulary=1000", "context=64")),
    ("unet.py", ("depth=2", "width=16", "size=64")),
)
"""Models of examples/ in sizes that one thread trains; the small candle_uno has tiny tasks."""


MOST_OTHERS = 0.1
"""Cores that other programs may take while a round counts."""
CALM_LIMIT_S = 60.0


def compare_predicted(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Profile, search and run each model on two ranks of one thread, as a user does.

    The speed of a shared machine changes from minute to minute, so that profiles and runs take
    turns, and the median of the rounds counts; those in which other programs took a part of the
    cores from the profile or from the run are shown, but do not count.
    """
    found = []
    for name, settings in PREDICTED:
        title = f"{name} {settings[-1]}"
        if arguments.models and not {name, title} & {*arguments.models}:
            continue
        model = [EXAMPLES / name, *(word for each in settings for word in ("--set", each))]
        rounds = [_predict_once(title, model) for _ in range(arguments.rounds)]
        calm = [row for row in rounds if row["others"] <= MOST_OTHERS]
        figures = {
            key: statistics.median(row[key] for row in calm or rounds)
            for key in ("predicted_s", "measured_s", "error")
        }
        found.append({"model": title, "calm": len(calm), **figures, "rounds": rounds})
        print(
            f"{title:26s} median of {len(calm)} calm rounds of {len(rounds)}:"
            f" predicted {figures['predicted_s']:.4f} s, measured {figures['measured_s']:.4f} s,"
            f" error {figures['error']:+.1%}",
            flush=True,
        )
    return found


def _predict_once(title: str, model: list[Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRAPHPLAN_CACHE_DIR"] = folder
        table, plan = Path(folder, "table.json"), Path(folder, "plan.json")
        profiled = call_calmly(
            "profile", *model, "--device", "cpu", "--batch-sizes", "4,8", "-o", table
        )[1]
        made = ("--cluster", "cpu", "--gpus", 2, "--batch", 32, "--micro-batch", 8)
        call_graphplan("search", *model, *made, "--costs", table, "--no-baselines", "-o", plan)
        facts, ran = call_calmly("run", plan, *model, "--device", "cpu", "--steps", 12)
        row = _compare_step(title, read_noun(plan, Plan), facts) | {"others": max(profiled, ran)}
    print(
        f"{title:26s} {row['stages']} stages, {row['schedule']:12s}"
        f" predicted {row['predicted_s']:.4f} s   measured {row['measured_s']:.4f} s"
        f" (fastest {row['fastest_s']:.4f})   error {row['error']:+.1%}"
        f"   others took {profiled:.2f} and {ran:.2f} cores",
        flush=True,
    )
    return row


def call_calmly(*words: object) -> tuple[dict[str, Any], float]:
    """What a command prints, begun when the machine was calm, and the cores that others took."""
    wait_calm(CALM_LIMIT_S)
    with Watch() as watch:
        facts = call_graphplan(*words)
    return facts, watch.others


def _compare_step(name: str, plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
    measured_s = statistics.median(facts["step_s"][2:])
    return {
        "model": name,
        "stages": len(plan.stages.stages),
        "schedule": plan.provenance.schedule,
        "predicted_s": plan.prediction.step_s,
        "measured_s": measured_s,
        "fastest_s": min(facts["step_s"]),
        "error": plan.prediction.step_s / measured_s - 1,
    }


# -- main ------------------------------------------------------------------------------------------


def call_graphplan(*words: object) -> dict[str, Any]:
    """What a command prints with --json."""
    command = [sys.executable, "-m", "graphplan", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def main() -> None:
    """Run one part."""
    parts = {
        "torch": compare_with_torch,
        "emulate": compare_emulated,
        "predict": compare_predicted,
    }
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("--rounds", type=int, help="Default: 10, and 3 for predict.")
    parser.add_argument("--steps", type=int, default=20, help="Steps of a round, or of a run.")
    parser.add_argument("--models", nargs="+", help="predict: these only.")
    parser.add_argument("--json", dest="path", help="Write the figures there.")
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = 3 if arguments.part == "predict" else 10
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = parts[arguments.part](arguments)
    if arguments.path:
        Path(arguments.path).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
