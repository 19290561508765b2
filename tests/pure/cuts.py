"""All cuts of small problems, and small random problems to cut."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

from graphplan.errors import CutError
from graphplan.nouns.cluster import Cluster, Link
from graphplan.nouns.plan import PlannedModel
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition.assemble import Draft, Part, assemble_stages
from tests.pure.problems import make_cluster, make_problem_by_hand


def make_random_problem(
    words: random.Random,
    num_nodes: int,
    num_devices: int,
    *,
    cluster: Cluster | None = None,
    micro_batch_sizes: tuple[int, ...] = (1, 2, 4, 8),
    pins: dict[int, int] | None = None,
) -> Problem:
    """Random edges, times, weights and links; memory is plenty."""
    edges = [(a, b) for b in range(1, num_nodes) for a in range(b) if words.random() < 0.45]
    link = Link(
        bandwidth_bytes_per_s=words.choice([1e3, 1e4, 1e18]), latency_s=words.choice([0.0, 0.05])
    )
    return make_problem_by_hand(
        [words.choice([1.0, 1.0, 2.0, 3.0, 5.0]) for _ in range(num_nodes)],
        edges,
        cluster=cluster or make_cluster(num_devices, inside=link),
        micro_batch_sizes=micro_batch_sizes,
        flow_elements=words.choice([1, 100]),
        trained_elements=[words.choice([0, 1000, 5000]) for _ in range(num_nodes)],
        overhead_s=words.choice([0.0, 0.5]),
        pins=pins,
    )


def find_best_cut(problem: Problem, evaluate: Callable[[StageGraph], float]) -> float:
    """The best step of all stages, device groups and (common) micro-batch sizes."""
    return min((evaluate(stages) for stages in list_cuts(problem)), default=math.inf)


def list_cuts(problem: Problem) -> Iterator[StageGraph]:
    """Every stage graph on equal devices, without recomputation, up to renaming devices."""
    for _, stages in list_drafts(problem):
        yield stages


def list_drafts(problem: Problem) -> Iterator[tuple[Draft, StageGraph]]:
    """The same with their drafts."""
    for blocks in list_partitions(problem.num_nodes):
        for groups in list_groups(len(problem.cluster.devices), len(blocks)):
            for chosen in itertools.product(groups, repeat=len(blocks)):
                if set(chosen) != set(groups):
                    continue
                for size in problem.micro_batch_sizes:
                    if any(size % len(group) for group in groups):
                        continue
                    draft = tuple(
                        Part(nodes=block, devices=group, micro_batch_size=size)
                        for block, group in zip(blocks, chosen, strict=True)
                    )
                    try:
                        yield draft, assemble_stages(problem, draft)
                    except CutError:
                        break


def list_partitions(count: int) -> Iterator[list[tuple[int, ...]]]:
    """All partitions of 0..count-1 into sets."""
    if count == 0:
        yield []
        return
    for smaller in list_partitions(count - 1):
        last = count - 1
        yield [*smaller, (last,)]
        for i, block in enumerate(smaller):
            yield [*smaller[:i], (*block, last), *smaller[i + 1 :]]


def list_groups(num_devices: int, most: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Groups of consecutive devices, larger ones first; not all devices need be used."""

    def sizes(left: int, largest: int) -> Iterator[tuple[int, ...]]:
        yield ()
        for size in range(min(left, largest), 0, -1):
            for rest in sizes(left - size, size):
                yield (size, *rest)

    for found in sizes(num_devices, num_devices):
        if 0 < len(found) <= most:
            ends = list(itertools.accumulate(found))
            yield tuple(
                tuple(range(end - size, end)) for size, end in zip(found, ends, strict=True)
            )


def make_model(problem: Problem) -> PlannedModel:
    """What the referee wants to know of a problem whose nodes are single ops."""
    return PlannedModel(
        name=problem.name,
        fingerprint=problem.fingerprint,
        ops=tuple(node.name for node in problem.nodes),
        edges=problem.edges,
    )
