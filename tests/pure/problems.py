"""Hand-made problems for tests of the cost model and the solvers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy

from graphplan.nouns.cluster import Cluster, DeviceType, Link, Node
from graphplan.nouns.problem import Flow, Problem, Recompute, Save, Tie
from graphplan.nouns.problem import Node as ProblemNode
from graphplan.nouns.tensor import TensorSpec
from graphplan.nouns.training import Training


def make_cluster(
    num_devices: int = 4,
    *,
    devices_per_node: int = 4,
    memory_bytes: int = 10**9,
    inside: Link | None = None,
    between: Link | None = None,
) -> Cluster:
    """Nodes of equal devices, all memory usable; free links unless others are given."""
    kind = DeviceType(
        name="gpu",
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=1e9,
        flops_per_s_by_dtype={"float32": 1e12},
        launch_s=0.0,
    )
    free = Link(bandwidth_bytes_per_s=1e18, latency_s=0.0)
    sizes = [
        min(devices_per_node, num_devices - first)
        for first in range(0, num_devices, devices_per_node)
    ]
    return Cluster(
        name="test",
        types=(kind,),
        nodes=tuple(Node(devices=("gpu",) * size, link=inside or free) for size in sizes),
        link=between or free,
        usable_memory=1.0,
    )


def make_problem_by_hand(
    forward_s: Sequence[float],
    edges: Sequence[tuple[int, int]],
    *,
    cluster: Cluster | None = None,
    batch_size: int = 8,
    micro_batch_sizes: Sequence[int] = (1, 2, 4, 8),
    flow_elements: int = 1,
    trained_elements: Sequence[int] | None = None,
    saved_bytes: Sequence[int] | None = None,
    backward_ratio: float = 2.0,
    overhead_s: float = 0.0,
    saves: tuple[Save, ...] = (),
    ties: tuple[Tie, ...] = (),
    pins: Mapping[int, int] | None = None,
    recompute: Recompute = "auto",
    speeds: Sequence[float] | None = None,
) -> Problem:
    """Node i takes overhead + forward_s[i] a sample forward, and backward_ratio times that back,
    half for the inputs and half for the weights; every edge is a flow of float32[b, elements].
    `speeds` divide the times by device type."""
    cluster = cluster or make_cluster()
    num = len(forward_s)
    samples = sorted(
        {size // d for size in micro_batch_sizes for d in range(1, size + 1) if size % d == 0}
    )
    per_size = overhead_s + numpy.outer(samples, numpy.array(forward_s, dtype=float))
    forward = numpy.repeat(per_size[None], len(cluster.types), axis=0)
    if speeds is not None:
        forward = forward / numpy.array(speeds)[:, None, None]
    readers: dict[int, list[int]] = {}
    for src, dst in sorted(set(edges)):
        readers.setdefault(src, []).append(dst)
    spec = TensorSpec(dtype="float32", shape=("b", flow_elements))
    zeros = numpy.zeros((len(samples), num), dtype=numpy.int64)
    return Problem(
        name="by hand",
        fingerprint="0" * 16,
        nodes=tuple(ProblemNode(name=f"n{i}", ops=(f"n{i}",)) for i in range(num)),
        edges=tuple(sorted(set(edges))),
        cluster=cluster,
        training=Training(batch_size=batch_size, optimizer="sgd"),
        micro_batch_sizes=tuple(micro_batch_sizes),
        sample_sizes=tuple(samples),
        forward_s=forward,
        input_grad_s=forward * backward_ratio / 2,
        weight_grad_s=forward * backward_ratio / 2,
        workspace_bytes=zeros,
        saved_bytes=numpy.outer(samples, saved_bytes or [0] * num).astype(numpy.int64),
        saved_for_weights_bytes=zeros.copy(),
        trained_elements=numpy.array(trained_elements or [0] * num, dtype=numpy.int64),
        held_bytes=numpy.zeros(num, dtype=numpy.int64),
        element_bytes=4,
        needs_backward=numpy.ones(num, dtype=numpy.bool_),
        flows=tuple(
            Flow(
                value=f"n{owner}",
                owner=owner,
                readers=tuple(found),
                spec=spec,
                needs_grad=True,
                bytes_by_size=tuple(spec.num_bytes(size) for size in samples),
            )
            for owner, found in readers.items()
        ),
        saves=saves,
        ties=ties,
        recompute=recompute,
        pins=dict(pins or {}),
    )
