"""Runtime benchmarks: beside torch.distributed.pipelining, emulated, predicted against measured.

    python tools/bench_runtime.py torch      # 1F1B on a chain, same stages, same processes
    python tools/bench_runtime.py emulate    # 8 ranks: graph plan against sequential plans
    python tools/bench_runtime.py predict    # 2 ranks of real compute: profile, simulate, run

Each prints a table; --json FILE writes the figures. Times are compared within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


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
            for side in ("torch", "ours"):
                row[f"{side} {key}"] = max(part[side][key] for part in parts)
            row[f"ratio {key}"] = row[f"ours {key}"] / row[f"torch {key}"]
        found.append(row)
        print(
            f"{name:40s} step {row['torch step_ms']:8.2f} ms torch {row['ours step_ms']:8.2f} ours"
            f" {row['ratio step_ms']:5.2f}x   cpu/task {row['torch cpu_us']:7.1f} us torch"
            f" {row['ours cpu_us']:7.1f} ours {row['ratio cpu_us']:5.2f}x",
            flush=True,
        )
    return found


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
            "step_ms": statistics.median(wall for wall, _ in found) * 1e3,
            "cpu_us": statistics.median(cpu for _, cpu in found) * 1e6 / num_tasks,
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

    from graphplan.capture import trace_module
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


# -- main ------------------------------------------------------------------------------------------


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["torch"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="Steps of a round.")
    parser.add_argument("--json", dest="path", help="Write the figures there.")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {"torch": compare_with_torch}[arguments.part](arguments)
    if arguments.path:
        Path(arguments.path).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
