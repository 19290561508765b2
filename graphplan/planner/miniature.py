"""Miniatures: plans for large clusters are plans for fewer devices, enlarged.

Where a cluster has many equal nodes, a plan for N / k devices and a k-th of the batch becomes one
for N devices in two ways: *apart*, with the whole pipeline once in each of k groups of nodes, or
*adjacent*, with k neighbours in place of every device. Either way a replica sees the samples that
it saw, as many micro-batches pass, and messages take what they took, on links of their own; only
gradients are reduced over k times as many devices, and that is how the cost model prices them in
a miniature (nouns/problem.py). So a miniature's judgements are those of the enlarged plan (nearly,
where neighbours take turns at one port of their node), and searching costs what it costs on N / k
devices. What is given up are pipelines with more stages
than N / k side by side, and plans that are no repetition; larger miniatures, and at last the
problem itself, are tried only where nothing fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec
import numpy

from graphplan.nouns.cluster import Cluster, Link, Node
from graphplan.nouns.problem import Miniature, Problem
from graphplan.nouns.stages import StageGraph

LEVELS = (64, 256, 1024)
"""Devices of a miniature at most, the first ones where anything fits."""
LEAST_SHARE = 4
"""A miniature has at least this share of the level's devices."""


def list_miniatures(problem: Problem) -> Iterator[tuple[Problem, ...]]:
    """Miniatures of a problem, the smallest first, apart and adjacent beside each other; at last
    the problem itself."""
    num_devices = len(problem.cluster.devices)
    for level in LEVELS:
        if num_devices <= level or problem.pins:
            break
        for size in range(level, max(1, level // LEAST_SHARE) - 1, -1):
            times, rest = divmod(num_devices, size)
            found = () if rest else tuple(_make_miniatures(problem, times))
            if found:
                yield found
                break
    yield (problem,)


def enlarge_stages(problem: Problem, stages: StageGraph) -> StageGraph:
    """The stages of a miniature on the devices for which its own stand."""
    whole = problem.miniature
    if whole is None:
        return stages
    enlarged = (
        msgspec.structs.replace(
            stage,
            devices=whole.enlarge(stage.devices),
            micro_batch_size=whole.times * stage.micro_batch_size,
        )
        for stage in stages.stages
    )
    return msgspec.structs.replace(stages, stages=tuple(enlarged))


def _make_miniatures(problem: Problem, times: int) -> Iterator[Problem]:
    """Both ways of dividing the devices by this number, as far as the cluster allows them."""
    batch = problem.training.batch_size
    sizes = tuple(size // times for size in problem.micro_batch_sizes if not size % times)
    if batch % times or not sizes:
        return
    for adjacent in (False, True):
        divide = _join_neighbours if adjacent else _take_group
        cluster = divide(problem.cluster, times)
        if cluster is not None:
            miniature = Miniature(cluster=problem.cluster, times=times, adjacent=adjacent)
            yield _shrink_problem(problem, cluster, sizes, miniature)


def _take_group(cluster: Cluster, times: int) -> Cluster | None:
    """The first of so many equal groups of nodes."""
    count, rest = divmod(len(cluster.nodes), times)
    if rest or any(node != cluster.nodes[0] for node in cluster.nodes):
        return None
    return msgspec.structs.replace(cluster, nodes=cluster.nodes[:count])


def _join_neighbours(cluster: Cluster, times: int) -> Cluster | None:
    """A device for every unit of so many neighbours: several in a node, or one for several."""
    first = cluster.nodes[0]
    num = len(first.devices)
    if any(node != first for node in cluster.nodes) or len(set(first.devices)) > 1:
        return None
    if num % times == 0:
        units = Node(devices=first.devices[: num // times], link=_share_link(first.link, times))
        nodes = (units,) * len(cluster.nodes)
    elif times % num == 0 and len(cluster.nodes) % (times // num) == 0:
        single = Node(devices=first.devices[:1], link=first.link)
        nodes = (single,) * (len(cluster.nodes) * num // times)
    else:
        return None
    between = _share_link(cluster.link, min(times, num))
    return msgspec.structs.replace(cluster, nodes=nodes, link=between)


def _share_link(link: Link, count: int) -> Link:
    """The link for one of so many devices that send at the same time: one port is shared."""
    if link.scope != "node":
        return link
    bandwidth = link.bandwidth_bytes_per_s / count
    return msgspec.structs.replace(link, bandwidth_bytes_per_s=bandwidth)


def _shrink_problem(
    problem: Problem, cluster: Cluster, sizes: tuple[int, ...], miniature: Miniature
) -> Problem:
    """The problem for fewer devices and samples; what a replica may see is chosen from what it
    could see before."""
    num_devices = len(cluster.devices)
    counts = range(1, num_devices + 1)
    kept = {size // count for size in sizes for count in counts if not size % count}
    rows = [i for i, samples in enumerate(problem.sample_sizes) if samples in kept]
    batch = problem.training.batch_size // miniature.times

    def choose(array: numpy.ndarray) -> numpy.ndarray:
        return array[..., rows, :].copy()

    def choose_bytes(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(numbers[i] for i in rows)

    return dataclasses.replace(
        problem,
        cluster=cluster,
        training=msgspec.structs.replace(problem.training, batch_size=batch),
        micro_batch_sizes=sizes,
        sample_sizes=choose_bytes(problem.sample_sizes),
        forward_s=choose(problem.forward_s),
        input_grad_s=choose(problem.input_grad_s),
        weight_grad_s=choose(problem.weight_grad_s),
        workspace_bytes=choose(problem.workspace_bytes),
        saved_bytes=choose(problem.saved_bytes),
        saved_for_weights_bytes=choose(problem.saved_for_weights_bytes),
        flows=tuple(
            msgspec.structs.replace(flow, bytes_by_size=choose_bytes(flow.bytes_by_size))
            for flow in problem.flows
        ),
        saves=tuple(
            msgspec.structs.replace(save, bytes_by_size=choose_bytes(save.bytes_by_size))
            for save in problem.saves
        ),
        miniature=miniature,
    )
