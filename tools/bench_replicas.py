"""Replicas beside torch: a plan of one stage on two ranks, DDP and fully_shard, in turn.

    python -m tools.bench_replicas                      # ratios of steps, and peaks of live tensors
    python -m tools.bench_replicas --models mlp --steps 40

All of them train the same module with AdamW on the same rows, in the same processes of one thread.
Single steps take turns, because other programs on the machine come and go; a ratio is the median
over pairs of neighbouring steps of the rank that took longest. Bytes are storages of tensors that
are alive at once, from before the first step, without what gloo holds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import nn

from examples.gpt import GPT
from graphplan.cost.allocator import keep_freed_memory
from graphplan.frontend import trace_module
from graphplan_runtime import Pipeline
from tests.processes.live import LiveBytes
from tests.processes.plans import plan_by_hand

NUM_RANKS = 2
Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[], None]


class ConvNet(nn.Sequential):
    """Convolutions with group norms, and a head."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        for width, wider in ((3, 64), (64, 128), (128, 256), (256, 256)):
            conv = nn.Conv2d(width, wider, 3, padding=1)
            blocks += [conv, nn.GroupNorm(8, wider), nn.ReLU(), nn.AvgPool2d(2)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(1024, 100))


def make_mlp() -> nn.Module:
    """Much weight for little work: reductions take most of a step."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)))


def make_gpt() -> nn.Module:
    """Two layers without dropout."""
    return GPT(layers=2, hidden=256, heads=4, vocabulary=2000, context=64).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "mlp": (make_mlp, lambda rows: (torch.randn(rows, 1024), torch.randint(1024, (rows,)))),
    "gpt": (
        make_gpt,
        lambda rows: (torch.randint(2000, (rows, 64)), torch.randint(2000, (rows, 64))),
    ),
    "conv": (ConvNet, lambda rows: (torch.randn(rows, 3, 32, 32), torch.randint(100, (rows,)))),
}
ROWS = {"mlp": 64, "gpt": 16, "conv": 32}


def find_loss(scores: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross entropy over the last dimension."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), batch[1].flatten())


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """The same for all."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def build(name: str) -> tuple[nn.Module, Batch]:
    """A model and the rows of all ranks, always the same."""
    torch.manual_seed(0)
    model, sample = MODELS[name]
    return model(), sample(ROWS[name])


def make_ours(name: str, level: int) -> Step:
    """One stage with two replicas, and one micro-batch."""
    model, batch = build(name)
    captured = trace_module(model, MODELS[name][1], loss=find_loss)
    plan = plan_by_hand(
        captured.graph,
        {op.name: 0 for op in captured.graph.ops},
        devices=[tuple(range(NUM_RANKS))],
        batch_size=ROWS[name],
        micro_batch_size=ROWS[name],
        zero=[level],  # type: ignore[list-item]
    )
    pipeline = Pipeline(plan, captured, optimizer=make_optimizer)
    return lambda: void(pipeline.step(batch))


def void(_: object) -> None:
    """A step gives nothing."""


def make_torch(name: str, wrap: Callable[[nn.Module], nn.Module]) -> Step:
    """A loop as people write it."""
    model, batch = build(name)
    own = tuple(each.chunk(NUM_RANKS)[dist.get_rank()] for each in batch)
    wrapped = wrap(model)
    optimizer = make_optimizer(wrapped.parameters())

    def step() -> None:
        loss = find_loss(wrapped(own[0]), (own[0], own[1]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(shown := loss.detach().clone())
        shown.item()

    return step


def wrap_ddp(model: nn.Module) -> nn.Module:
    """As it comes."""
    return nn.parallel.DistributedDataParallel(model)


def wrap_shards(model: nn.Module) -> nn.Module:
    """Layer by layer, then the rest."""
    from torch.distributed.fsdp import fully_shard

    layers = model.layers if isinstance(model, GPT) else model
    for each in layers.children():
        if any(True for _ in each.parameters()):
            fully_shard(each)
    fully_shard(model)
    return model


def list_sides(name: str) -> dict[str, Callable[[], Step]]:
    """What is compared."""
    return {
        "ddp": lambda: make_torch(name, wrap_ddp),
        "fully_shard": lambda: make_torch(name, wrap_shards),
        **{f"zero {level}": lambda level=level: make_ours(name, level) for level in range(4)},  # type: ignore[misc]
    }


def measure_rank(rank: int, folder: str, name: str, num_steps: int) -> None:
    """Peaks of each side by itself, then steps in turn."""
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS
    )
    found: dict[str, dict[str, Any]] = {}
    for side, make in list_sides(name).items():
        with LiveBytes() as live:
            step = make()
            gc.collect()
            start = live.live
            live.peak = 0
            for _ in range(3):
                step()
        found[side] = {"peak": live.peak, "start": start, "seconds": [], "faults": []}
        del step
        gc.collect()
    steps = {side: make() for side, make in list_sides(name).items()}
    for index in range(num_steps + 3):
        for side, step in steps.items():
            dist.barrier()
            begin, faults = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            step()
            if index >= 3:
                found[side]["seconds"].append(time.perf_counter() - begin)
                now = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                found[side]["faults"].append(now - faults)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def compare(name: str, num_steps: int) -> dict[str, Any]:
    """The table of a model."""
    import torch.multiprocessing as spawn

    with tempfile.TemporaryDirectory() as folder:
        spawn.spawn(measure_rank, (folder, name, num_steps), NUM_RANKS)  # type: ignore[no-untyped-call, attr-defined]
        parts = [json.loads(p.read_text()) for p in sorted(Path(folder).glob("rank*.json"))]
    seconds = {
        side: [max(ranks) for ranks in zip(*(part[side]["seconds"] for part in parts), strict=True)]
        for side in parts[0]
    }
    rows: dict[str, Any] = {}
    for side, own in seconds.items():
        ratios = {
            rival: statistics.median(a / b for a, b in zip(own, seconds[rival], strict=True))
            for rival in ("ddp", "fully_shard")
        }
        peak = max(part[side]["peak"] for part in parts) / 1e6
        faults = max(statistics.median(part[side]["faults"]) for part in parts)
        rows[side] = {"step_ms": statistics.median(own) * 1e3, "peak_mb": peak, **ratios}
        rows[side]["page_faults"] = faults
        print(
            f"{name:5s} {side:12s} step {rows[side]['step_ms']:8.1f} ms   over ddp"
            f" {ratios['ddp']:5.2f}   over fully_shard {ratios['fully_shard']:5.2f}"
            f"   peak {peak:7.1f} MB   page faults {faults:6.0f}",
            flush=True,
        )
    return rows


def main() -> None:
    """All models, or some."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", dest="path", help="Write the figures there.")
    arguments = parser.parse_args()
    found = {name: compare(name, arguments.steps) for name in arguments.models}
    if arguments.path:
        Path(arguments.path).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
