"""Piper's inputs, posed under Piper's own rule: its answers, and every pipeline of small graphs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidFile
from graphplan.nouns.training import Training
from tests.pure.problems import make_cluster
from tools.workloads.piper import solve_piper
from tools.workloads.profiled import pose_profiled
from tools.workloads.workload import (
    ProfiledEdge,
    ProfiledOp,
    ProfiledWorkload,
    RecomputedOp,
    read_workload,
)

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "workloads"
GIB = 2.0**30
BERT, RESNET = (1920, 25 * GIB), (7680, 25_000 * GIB)


@pytest.mark.parametrize(
    ("name", "num_devices", "gib", "replicated", "published_s"),
    [
        ("bert32", 4, 80, False, 0.2952208),
        ("bert32", 8, 80, False, 0.1645157),
        ("bert32", 16, 80, False, 0.0997485),
        ("bert32", 8, 8, True, 0.1658558),
        ("bert32", 32, 8, True, 0.0415155),
        ("bert32", 64, 8, True, 0.0202006),
        ("resnet", 8, 80, False, 0.05846125),
        ("resnet", 8, 4, True, 0.073493286),
    ],
)
def test_published_answers_are_met(
    name: str, num_devices: int, gib: float, replicated: bool, published_s: float
) -> None:
    """No tensor parallelism is in any of them; replicas may be any divisor of the batch."""
    workload = read_workload(FOLDER / f"profiled-piper-{name}.json")
    assert isinstance(workload, ProfiledWorkload)
    num_micro_batches, bandwidth = BERT if name == "bert32" else RESNET
    cut = solve_piper(
        workload,
        num_devices,
        num_micro_batches=num_micro_batches,
        memory_bytes=gib * GIB,
        bandwidth=bandwidth,
        replicated=replicated,
    )
    assert cut is not None
    assert cut.bottleneck_s == pytest.approx(published_s, abs=6e-8)


def make_small(rng: random.Random) -> ProfiledWorkload:
    """Four ops in a random graph; recomputation saves some memory and takes some time."""
    ops = []
    for i in range(4):
        seconds, stashed = rng.uniform(1, 3), rng.randint(1, 5)
        ops.append(
            ProfiledOp(
                name=f"n{i}",
                forward_s=seconds / 3,
                backward_s=seconds - seconds / 3,
                output_bytes=1,
                param_bytes=rng.randint(0, 50),
                stashed_bytes=stashed,
                fixed_bytes=rng.randint(0, 3),
                recomputed=RecomputedOp(
                    seconds=1.3 * seconds, stashed_bytes=stashed / 5, fixed_bytes=1
                ),
            )
        )
    pairs = [pair for pair in itertools.combinations(range(4), 2) if rng.random() < 0.5]
    edges = [
        ProfiledEdge(src=f"n{a}", dst=f"n{b}", bytes=rng.randint(0, 5))
        for a, b in pairs or [(0, 1)]
    ]
    return ProfiledWorkload(name="small", ops=tuple(ops), edges=tuple(edges))


def list_pipelines(num_nodes: int, num_devices: int) -> Iterator[list[tuple[set[int], int]]]:
    """Every ordered partition of the nodes with every number of replicas."""
    for places in itertools.product(range(num_nodes), repeat=num_nodes):
        depth = max(places) + 1
        if set(places) == set(range(depth)):
            groups = [{n for n in range(num_nodes) if places[n] == s} for s in range(depth)]
            for widths in itertools.product(range(1, num_devices + 1), repeat=depth):
                if sum(widths) <= num_devices:
                    yield list(zip(groups, widths, strict=True))


def time_pipeline(
    workload: ProfiledWorkload, pipeline: list[tuple[set[int], int]], memory_bytes: float
) -> float:
    """The rule in words; of recomputing nodes, those that save most for their time first."""
    ends = [(int(e.src[1:]), int(e.dst[1:]), e.bytes) for e in workload.edges]
    rank = {n: s for s, (nodes, _) in enumerate(pipeline) for n in nodes}
    if any(rank[a] > rank[b] for a, b, _ in ends):
        return math.inf
    slowest = 0.0
    for s, (nodes, replicas) in enumerate(pipeline):
        stashes = math.ceil(sum(width for _, width in pipeline[s:]) / replicas)
        seconds = needed = 0.0
        choices = []
        for op in (workload.ops[n] for n in nodes):
            assert op.recomputed and op.stashed_bytes is not None and op.fixed_bytes is not None
            plain_s, plain = (
                op.forward_s + op.backward_s,
                op.fixed_bytes + stashes * op.stashed_bytes,
            )
            again = op.recomputed.fixed_bytes + stashes * op.recomputed.stashed_bytes
            seconds, needed = seconds + plain_s, needed + plain
            if again < plain:
                more_s = op.recomputed.seconds - plain_s
                choices.append((more_s / (plain - again), more_s, plain - again))
        for _, more_s, saved in sorted(choices):
            if needed > memory_bytes:
                seconds, needed = seconds + more_s, needed - saved
        if needed > memory_bytes:
            return math.inf
        moved = sum(2 * size for a, b, size in ends if (a in nodes) != (b in nodes))
        weights = sum(workload.ops[n].param_bytes for n in nodes)
        reducing = 4 * (replicas - 1) / replicas * weights / 10 / 12
        slowest = max(slowest, (seconds + moved / 10) / replicas + reducing)
    return slowest


@pytest.mark.parametrize("seed", range(12))
def test_small_graphs_against_every_pipeline(seed: int) -> None:
    """Three devices, 12 micro-batches, 10 bytes a second."""
    rng = random.Random(seed)
    workload, memory_bytes = make_small(rng), rng.choice([8.0, 12.0, 40.0])
    best = min(time_pipeline(workload, each, memory_bytes) for each in list_pipelines(4, 3))
    cut = solve_piper(workload, 3, num_micro_batches=12, memory_bytes=memory_bytes, bandwidth=10.0)
    assert (cut.bottleneck_s if cut else math.inf) == pytest.approx(best, rel=1e-6)


def test_files_without_stashes_are_refused() -> None:
    """PipeDream's files do not say what Piper's rule asks for."""
    workload = read_workload(FOLDER / "profiled-pipedream-vgg16.json")
    assert isinstance(workload, ProfiledWorkload)
    with pytest.raises(InvalidFile, match="profiled-piper"):
        solve_piper(workload, 4, num_micro_batches=8, memory_bytes=GIB)


def test_stages_hold_what_the_file_says() -> None:
    """What is stashed and fixed counts in the full planning problem, too."""
    workload = read_workload(FOLDER / "profiled-piper-bert32.json")
    assert isinstance(workload, ProfiledWorkload)
    problem = pose_profiled(
        workload, make_cluster(4), Training(batch_size=8, optimizer="sgd"), micro_batch_sizes=[8]
    )
    layer = next(i for i, node in enumerate(problem.nodes) if "Layer" in node.name)
    memory = CostModel(problem).stage_memory([layer], 2)
    op = next(op for op in workload.ops if op.name == problem.nodes[layer].ops[0])
    assert memory.saved == 2 * (op.stashed_bytes or 0)
    assert memory.fixed >= (op.fixed_bytes or 0)
