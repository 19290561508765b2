"""The figures of profiles/hardware/cpu.toml and of its link, measured on this CPU.

python tools/validate_costs.py --hardware
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing

from graphplan.cost.measure_clock import Clock
from graphplan.cost.measure_unit import Effort, repeat


def measure_hardware(clock: Clock) -> dict[str, float]:
    """The figures of profiles/hardware/cpu.toml, for this CPU and this number of threads."""
    figures: dict[str, float] = {}
    for dtype in (torch.float32, torch.float64):
        a, b = (torch.rand(1536, 1536, dtype=dtype) for _ in range(2))
        seconds = time_call(lambda a=a, b=b: a @ b, clock)  # type: ignore[misc]
        figures[f"tflops_per_s {dtype}"] = 2 * 1536**3 / seconds / 1e12
    source, target = torch.rand(1 << 26), torch.empty(1 << 26)
    seconds = time_call(lambda: target.copy_(source), clock)
    figures["bandwidth_gb_per_s"] = 2 * source.numel() * 4 / seconds / 1e9
    tiny = torch.rand(8)
    figures["launch_us"] = time_call(lambda: [tiny + 1 for _ in range(100)], clock) * 1e4
    return figures | measure_link()


def measure_link() -> dict[str, float]:
    """Latency and bandwidth of gloo messages between two processes, one way."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        torch.multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
            _exchange, (f"file://{folder}/meet", str(result)), nprocs=2
        )
        return dict(json.loads(result.read_text()))


def _exchange(rank: int, meeting: str, result: str) -> None:
    """Send messages to and fro, a small one and one of 16 MB."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    seconds = {}
    for size in (1, 1 << 22):
        message, samples = torch.zeros(size), []
        for _ in range(30):
            start = time.perf_counter()
            for turn in (0, 1):
                if rank == turn:
                    torch.distributed.send(message, 1 - rank)
                else:
                    torch.distributed.recv(message, 1 - rank)
            samples.append((time.perf_counter() - start) / 2)
        seconds[size] = sorted(samples)[len(samples) // 4]
    if rank == 0:
        rate = 4 * (1 << 22) / (seconds[1 << 22] - seconds[1]) / 1e9
        figures = {"link latency_us": seconds[1] * 1e6, "link bandwidth_gb_per_s": rate}
        Path(result).write_text(json.dumps(figures))
    torch.distributed.destroy_process_group()


def time_call(call: Callable[[], object], clock: Clock) -> float:
    """Seconds of a call."""

    def sample() -> float:
        start = clock.mark()
        call()
        return clock.seconds(start, clock.mark())

    return repeat(sample, clock, Effort(budget_s=1.0))[0]
