"""Steps and peak memory of Megatron-LM's own tests against plans of the same configuration.

The models are written as Megatron builds them (`megatron_models.py`): BERT with scores of its own,
GPT with grouped queries, learned positions, fused attention and no rotation, both with the loss.
Stages are equal runs of layers, `vpp` of them on every device in turn.

Its tests run on slow hosts: models so small that nothing else counts (hidden 512, all of them, on
the same device and software) show what a step, a layer and a chunk of layers cost the host. A layer
is spread over its kernels (`host_s`), a chunk is what a task takes beyond its ops (`task_s`).

Memory is that of the last device, as Megatron logs it. It adds gradients up in 32 bits, where our
mixed precision keeps 16, and its distributed optimizer holds a share of the states on each replica;
both are counted on top, by the trained elements of that device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy

from graphplan.cost.estimate import count_launches, list_kernels
from graphplan.cost.flops import count_work
from graphplan.cost.hardware import find_cluster
from graphplan.cost.laws.gemm import Floats
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.training import Training
from tools.captured_steps import capture_model, simulate_cut
from tools.gpu_data import Row, read_rows

CLUSTERS = {"A100": "dgx-a100", "GB200": "dgx-b200"}
"""Clusters of ours for the machines of the tests."""
GPT_WORDS, BERT_WORDS = 131072 + 128, 30592
"""Vocabularies as Megatron pads them."""
GRADIENT_BYTES, STATE_BYTES = 2, 12
"""Of an element: what a gradient in 32 bits has more than ours; master weight and two moments."""
HEAD = """\
| test | device | stages x chunks x replicas | s | predicted | ratio | peak GB | predicted | ratio |
|---|---|---|---|---|---|---|---|---|"""
ROUNDS = 60
SMALLEST = 0.01


class Host(NamedTuple):
    """Seconds that a host takes for a step, for a layer and a micro-batch, and for a chunk."""

    step_s: float
    layer_s: float
    chunk_s: float


def build_model(row: Row) -> Any:
    """BERT or GPT as the row's test trains it."""
    from tools.megatron_models import Model, Sizes

    hidden, causal = int(row["hidden"]), row["family"] == "gpt"
    sizes = Sizes(
        layers=int(row["layers"]),
        hidden=hidden,
        wide=int(row["ffn"] or 4 * hidden),
        heads=int(row["heads"]),
        key_heads=int(row["kv_heads"]),
        sequence=int(row["sequence"]),
        words=GPT_WORDS if causal else BERT_WORDS,
        causal=causal,
    )
    return Model(sizes)


def list_megatron_lines(folder: Path) -> Iterator[str]:
    """BERT and GPT from hidden 1,024 on without tensor parallelism, each row."""
    yield HEAD
    rows = list(read_rows(folder / "megatron.csv"))
    for row in rows:
        large = row["hidden"] and int(row["hidden"]) >= 1024 and row["tp"] == "1"
        if not large or row["family"] not in ("bert", "gpt") or row["gpu"] not in CLUSTERS:
            continue
        step_s, peak = predict_row(row, fit_host(rows, row))
        taken, real = float(row["step_s"]), float(row["peak_allocated_bytes"]) / 1e9
        yield (
            f"| {row['test']} {row['environment']} | {row['gpu']} |"
            f" {row['pp']} x {row['vpp'] or 1} x {row['dp']} |"
            f" {taken:.3f} | {step_s:.3f} | {step_s / taken:.2f} |"
            f" {real:.2f} | {peak / 1e9:.2f} | {peak / 1e9 / real:.2f} |"
        )


def predict_row(row: Row, host: Host) -> tuple[float, float]:
    """Seconds of the step, and bytes at the peak of the last device."""
    graph = capture_model(
        f"megatron-{row['family']}-{row['hidden']}",
        lambda: build_model(row),
        lambda b: _list_inputs(b, int(row["sequence"])),
    )
    replicas, stages, chunks = int(row["dp"]), int(row["pp"]), int(row["vpp"] or 1)
    training = Training(
        batch_size=int(row["global_batch"]), optimizer="adam", precision="bfloat16", mixed=True
    )
    cluster = find_cluster(CLUSTERS[row["gpu"]], gpus=int(row["gpus"]))
    priced, prediction = simulate_cut(
        graph,
        slow_host(cluster, graph, host, int(row["layers"]), chunked=stages > 1),
        training,
        stages,
        int(row["micro_batch"]) * replicas,
        num_chunks=chunks,
    )
    last = len(cluster.devices) - 1
    elements = sum(s.trained_bytes for s in priced.stages if last in s.devices) // 2
    away = 1 - 1 / replicas if row["distributed_optimizer"] == "1" else 0
    more = elements * (GRADIENT_BYTES - STATE_BYTES * away)
    return prediction.step_s + host.step_s, prediction.peak_bytes_by_device[last] + more


def _list_inputs(batch_size: int, sequence: int) -> dict[str, Any]:
    import torch

    return {
        name: torch.zeros(batch_size, sequence, dtype=torch.long) for name in ("tokens", "labels")
    }


def fit_host(rows: Sequence[Row], wanted: Row) -> Host:
    """What the host takes, from the smallest models on the same device and software.

    Least squares with weights that count large errors linearly; none of the three is negative.
    """
    small = [
        row
        for row in rows
        if (row["family"], row["hidden"], row["tp"]) == ("gpt", "512", "1")
        and (row["gpu"], row["environment"]) == (wanted["gpu"], wanted["environment"])
        and row["dp"] and row["layers"] and not row["experts"] and not row["recompute"]
        and row["cp"] in ("", "1")
    ]  # fmt: skip
    counts = numpy.array([count_passes(row) for row in small])
    taken = numpy.array([float(row["step_s"]) for row in small])
    weight, found = 1 / taken, numpy.zeros(3)
    for _ in range(ROUNDS):
        found = _solve_positive(counts * weight[:, None], taken * weight)
        error = numpy.abs(counts @ found - taken) / taken
        weight = 1 / taken / numpy.sqrt(numpy.maximum(error, SMALLEST))
    return Host(*found.tolist())


def count_passes(row: Mapping[str, str]) -> tuple[float, float, float]:
    """Steps, layers and chunks that one device runs one after another in a step."""
    stages, chunks = int(row["pp"]), int(row["vpp"] or 1)
    micros = int(row["global_batch"]) / int(row["micro_batch"]) / int(row["dp"])
    turns = micros + (stages - 1) / chunks
    return 1.0, int(row["layers"]) / stages * turns, turns * chunks if stages > 1 else 0.0


def _solve_positive(counts: Floats, goal: Floats) -> Floats:
    """The best of all choices of columns whose answers are not negative."""
    best, least = numpy.zeros(3), numpy.inf
    for num in (1, 2, 3):
        for chosen in itertools.combinations(range(3), num):
            found = numpy.zeros(3)
            found[list(chosen)] = numpy.linalg.lstsq(counts[:, chosen], goal, rcond=None)[0]
            loss = float(((counts @ found - goal) ** 2).sum())
            if (found >= 0).all() and loss < least:
                best, least = found, loss
    return best


def slow_host(
    cluster: Cluster, graph: OpGraph, host: Host, num_layers: int, *, chunked: bool
) -> Cluster:
    """The cluster whose host takes so long for a layer and a chunk, forward and backward."""
    works = count_work(graph, 1).values()
    launches = sum(count_launches(list_kernels(work)) for work in works) / num_layers
    task_s = host.chunk_s / 2 if chunked else 0.0
    types = [
        msgspec.structs.replace(each, host_s=host.layer_s / launches, task_s=task_s)
        for each in cluster.types
    ]
    return msgspec.structs.replace(cluster, types=tuple(types))
