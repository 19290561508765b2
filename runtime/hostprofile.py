"""Host profile: what ranks that share this machine have of it, measured by ranks at work.

Every rank measures at the same time as the others:

task_s     a pipeline of one tiny stage; the time of a task less that of its ops
bandwidth  the memory traffic of a fused optimizer that finds nothing in the caches
link       messages to and fro between two ranks that compute meanwhile. What a message takes from
           the processor is taken from the tasks of both ends: all of it where the ranks fill the
           cores, else what the main thread spends. The link's own time is the rest.
reduce     gradients summed over all ranks as at the end of a step: gathered into a bucket, added up
           in a ring, spread. The rank that came last did not wait for the others; its time counts.

    python -m graphplan_runtime.hostprofile FOLDER RANK NUM_RANKS NUM_THREADS
"""

from __future__ import annotations

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
import torch
import torch.distributed as dist
from torch import nn

from graphplan.cost.allocator import keep_freed_memory
from graphplan.cost.cores import count_cores, keep_cores
from graphplan.cost.hardware import find_cluster
from graphplan.cost.measure import measure_table
from graphplan.cost.sums import count_update_bytes
from graphplan.errors import GraphplanError
from graphplan.frontend import trace_module
from graphplan.nouns.cluster import Link
from graphplan.nouns.table import Host
from graphplan.nouns.training import BUCKET_BYTES, Training
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import search_plan
from graphplan_runtime.messages.buckets import sum_gradients
from graphplan_runtime.messages.doors import find_loopback, shut_doors
from graphplan_runtime.messages.transport import Group, Transport
from graphplan_runtime.pipeline import Pipeline

SIZES = (4, 1 << 20)
"""Bytes of the messages: a start, and a length."""
NUM_TASKS, NUM_STEPS = 64, 20
NUM_ELEMENTS, NUM_UPDATES = 1 << 23, 10
NUM_MESSAGES = 100
SUMMED_SIZES = (1 << 16, 1 << 24)
"""Bytes of the gradients that are summed."""
NUM_WEIGHTS, NUM_SUMS = 16, 12
TASK_S = 2e-3
"""Compute of a rank between two messages, roughly."""


class Figures(msgspec.Struct):
    """What one rank has measured."""

    task_s: float
    bandwidth_bytes_per_s: float
    host_s: dict[int, float]
    """Processor time of a message at one end, by bytes."""
    sent_at_s: dict[int, list[float]]
    heard_at_s: dict[int, list[float]]
    sums_s: dict[int, list[float]]
    """Every sum of gradients, by bytes."""


def measure_host(num_ranks: int) -> Host:
    """Start so many ranks on this machine and let them measure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __name__, folder]
        last = (str(num_ranks), str(torch.get_num_threads()))
        here = {**os.environ, "GLOO_SOCKET_IFNAME": find_loopback()}
        started = [
            subprocess.Popen(
                [*command, str(rank), *last], stderr=subprocess.PIPE, text=True, env=here
            )
            for rank in range(num_ranks)
        ]
        errors = [process.communicate()[1] for process in started]
        if any(process.returncode for process in started):
            lines = [error.strip().splitlines()[-1] for error in errors if error.strip()]
            raise GraphplanError(
                f"This host could not be measured: {'; '.join(lines)}.",
                remedy="Use --ranks-per-host 1 to measure the ops alone.",
            )
        parts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(num_ranks)]
    return summarise_host([msgspec.json.decode(part, type=Figures) for part in parts])


def summarise_host(figures: list[Figures]) -> Host:
    """The mean of all ranks."""
    short, long = SIZES
    host_s = {n: statistics.fmean(each.host_s[n] for each in figures) for n in SIZES}
    one_way_s = {n: statistics.median(_list_delays(figures, n)) for n in SIZES}
    host_s_per_byte = max(0.0, (host_s[long] - host_s[short]) / (long - short))
    per_byte_s = (one_way_s[long] - one_way_s[short]) / (long - short)
    reduce_s, reduce_s_per_byte = _split_sums(figures)
    return Host(
        num_ranks=len(figures),
        task_s=statistics.fmean(each.task_s for each in figures),
        bandwidth_bytes_per_s=statistics.fmean(each.bandwidth_bytes_per_s for each in figures),
        link=Link(
            latency_s=max(0.0, one_way_s[short] - 2 * host_s[short]),
            bandwidth_bytes_per_s=1 / max(per_byte_s - 2 * host_s_per_byte, 1e-12),
            scope="device",
            host_s=host_s[short],
            host_s_per_byte=host_s_per_byte,
            reduce_s=reduce_s,
            reduce_s_per_byte=reduce_s_per_byte,
        ),
    )


def _split_sums(figures: list[Figures]) -> tuple[float, float]:
    """Of one message of the ring: a start, and a byte."""
    short, long = SUMMED_SIZES
    rounds = 2 * (len(figures) - 1)
    message_s = {
        n: statistics.median(map(min, zip(*(each.sums_s[n] for each in figures), strict=True)))
        / rounds
        for n in SUMMED_SIZES
    }
    per_byte_s = max(0.0, (message_s[long] - message_s[short]) * len(figures) / (long - short))
    return max(0.0, message_s[short] - per_byte_s * short / len(figures)), per_byte_s


def _list_delays(figures: list[Figures], num_bytes: int) -> list[float]:
    """From the sender's post to the receiver's answer; processes of a host have one clock."""
    found = []
    for rank, each in enumerate(figures[: len(figures) // 2 * 2]):
        heard = figures[rank ^ 1].heard_at_s[num_bytes]
        found += [b - a for a, b in zip(each.sent_at_s[num_bytes], heard, strict=True)]
    return found


# -- one rank --------------------------------------------------------------------------------------


def measure_rank(folder: Path, rank: int, num_ranks: int) -> Figures:
    """All figures of one rank; all ranks must call it."""
    is_full = _fills_cores(num_ranks)
    keep_cores(rank, num_ranks)
    _connect(folder / f"alone-{rank}", 0, 1)
    task_s = _measure_task()
    dist.destroy_process_group()
    _connect(folder / "all", rank, num_ranks)
    dist.barrier()
    bandwidth = _measure_bandwidth()
    figures = Figures(task_s, bandwidth, {}, {}, {}, {})
    group = tuple(range(num_ranks))
    transport = Transport(torch.device("cpu"), groups=[group])
    for num_bytes in SIZES:
        dist.barrier()
        if rank ^ 1 < num_ranks:
            _exchange(transport, num_bytes, figures, is_full=is_full)
    figures.sums_s = {n: _measure_sums(transport, group, n) for n in SUMMED_SIZES}
    dist.barrier()
    dist.destroy_process_group()
    return figures


def _connect(path: Path, rank: int, num_ranks: int) -> None:
    place = f"file://{path}"
    with shut_doors():
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=num_ranks)


def _fills_cores(num_ranks: int) -> bool:
    return num_ranks * torch.get_num_threads() >= count_cores()


def _measure_task() -> float:
    """What the runtime takes for a task beyond its ops."""
    captured = trace_module(
        nn.Linear(8, 8),
        lambda size: {"input": torch.zeros(size, 8)},
        loss=lambda output, _: output.mean(),
    )
    rows = measure_table(captured, device="cpu", batch_sizes=[4], calibrate_sizes=()).rows
    ops_s = sum(r.forward_s[0] + r.input_grad_s[0] + r.weight_grad_s[0] for r in rows)
    options = SearchOptions(
        batch_size=4 * NUM_TASKS, micro_batch_sizes=(4,), baselines=False, schedule="gpipe"
    )
    plan = search_plan(captured.graph, find_cluster("cpu", gpus=1), options)
    pipeline = Pipeline(plan, captured)
    batch = {"input": torch.zeros(4 * NUM_TASKS, 8)}
    steps_s = [_time_thread(lambda: pipeline.step(batch)) for _ in range(NUM_STEPS)]
    # A forward and a backward of every micro-batch.
    return max(0.0, (statistics.median(steps_s[2:]) / NUM_TASKS - ops_s) / 2)


def _measure_bandwidth() -> float:
    weights = nn.Parameter(torch.zeros(NUM_ELEMENTS))
    weights.grad = torch.ones(NUM_ELEMENTS)
    optimizer = torch.optim.AdamW([weights], fused=True)
    times_s = [_time_thread(optimizer.step) for _ in range(NUM_UPDATES)]
    training = Training(batch_size=1, optimizer="adamw")
    return count_update_bytes(training, 4) * NUM_ELEMENTS / statistics.median(times_s[2:])


def _measure_sums(transport: Transport, group: Group, num_bytes: int) -> list[float]:
    """Seconds of sums of gradients over all ranks, which begin together."""
    size = num_bytes // 4 // NUM_WEIGHTS
    weights = [nn.Parameter(torch.zeros(size)) for _ in range(NUM_WEIGHTS)]
    times_s = []
    for _ in range(NUM_SUMS):
        for weight in weights:
            weight.grad = torch.ones(size)
        transport.meet()
        start = time.perf_counter()
        sum_gradients(weights, group, transport, bucket_bytes=BUCKET_BYTES)
        times_s.append(time.perf_counter() - start)
    return times_s[2:]


def _exchange(transport: Transport, num_bytes: int, figures: Figures, *, is_full: bool) -> None:
    """Send to the partner and hear from it in turn, with some compute in between."""
    peer, is_first = transport.rank ^ 1, transport.rank % 2 == 0
    tensor, compute = torch.zeros(max(1, num_bytes // 4)), _make_compute()
    sent: list[float] = []
    heard: list[float] = []
    compute_s = 0.0

    def send(tag: int) -> None:
        nonlocal compute_s
        compute_s += _time_thread(compute)
        sent.append(time.perf_counter())
        work = transport.send(tensor, peer, tag)
        compute_s += _time_thread(compute)
        work.wait()

    def hear(tag: int) -> None:
        transport.receive(transport.queues.take(tensor.shape, tensor.dtype), peer, tag).wait()
        heard.append(time.perf_counter())

    clock = time.process_time if is_full else time.thread_time
    start = clock()
    for tag in range(NUM_MESSAGES):
        for act in (send, hear) if is_first else (hear, send):
            act(tag)
    figures.host_s[num_bytes] = (clock() - start - compute_s) / (2 * NUM_MESSAGES)
    figures.sent_at_s[num_bytes], figures.heard_at_s[num_bytes] = sent, heard


def _make_compute() -> Callable[[], None]:
    """Work that takes about `TASK_S`."""
    matrix = torch.zeros(256, 256)
    once_s = max(min(_time_thread(lambda: matrix @ matrix) for _ in range(10)), 1e-6)

    def compute() -> None:
        for _ in range(max(1, round(TASK_S / once_s))):
            matrix @ matrix

    return compute


def _time_thread(run: Callable[[], Any]) -> float:
    """Seconds that this thread was running."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def main() -> None:
    """One rank."""
    folder, rank, num_ranks, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    keep_freed_memory()
    figures = measure_rank(Path(folder), int(rank), int(num_ranks))
    Path(folder, f"{rank}.json").write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
