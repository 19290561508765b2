"""Reducing a pipeline problem to max-load: one micro-batch size, equal replicas, no schedule.

A node takes its forward and backward on one replica, on the slowest device type. A flow takes its
bytes, gradient included, over the slowest link that stages may have between them. Memory counts
what a node holds all the time; activations are left to recomputation and to the evaluation.
"""

from __future__ import annotations

import numpy

from graphplan.cost.sums import bytes_per_trained_element
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.problem import Problem
from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad


def reduce_problem(
    problem: Problem, micro_batch_size: int, *, num_parts: int, num_replicas: int = 1
) -> MaxLoad:
    """The max-load problem of `num_parts` stages with `num_replicas` devices each."""
    size = problem.size_index[micro_batch_size // num_replicas]
    backward = numpy.where(
        problem.needs_backward, problem.input_grad_s[:, size] + problem.weight_grad_s[:, size], 0.0
    )
    seconds = (problem.forward_s[:, size] + backward).max(axis=0)
    per_element = sum(bytes_per_trained_element(problem.training, problem.element_bytes))
    held = problem.trained_elements * per_element + problem.held_bytes
    rate = _slowest_rate(problem.cluster, num_parts * num_replicas, num_replicas)
    return MaxLoad(
        name=problem.name,
        ops=tuple(
            LoadOp(name=node.name, seconds=float(seconds[v]), bytes=int(held[v]))
            for v, node in enumerate(problem.nodes)
        ),
        edges=problem.edges,
        tensors=tuple(
            LoadTensor(
                owner=flow.owner,
                readers=flow.readers,
                seconds=flow.buffer_bytes(size) / rate,
            )
            for flow in problem.flows
            if flow.owner is not None
        ),
        num_parts=num_parts,
        memory_bytes=min(device.memory_bytes for device in problem.cluster.devices),
    )


def _slowest_rate(cluster: Cluster, num_devices: int, num_replicas: int) -> float:
    """Bytes a second of the slowest link between neighbouring stages on the first devices."""
    borders = range(num_replicas, num_devices, num_replicas)
    links = [cluster.link_between(device - 1, device) for device in borders]
    return min((link.bandwidth_bytes_per_s for link in links), default=float("inf"))
