"""What a node takes at the least, whatever the plan: the figures that all bounds add up.

Notation as in bound.py: l_k is the weight of device type k, chosen so that the weights of all
devices add up to 1. A second of a device of type k counts l_k, so that no plan of T seconds spends
more than T of such *weighed* seconds.
"""

from __future__ import annotations

import dataclasses
import math

import numpy
from numpy.typing import NDArray

from graphplan.cost.sums import ALONE, Sharing, StageSums, count_memory, time_update
from graphplan.nouns.problem import Floats, Ints, Problem


@dataclasses.dataclass(frozen=True)
class NodeCosts:
    """Arrays [size, node] or [node], the best of all device types; infinity where a node does not
    fit."""

    work: Floats
    """[size, node]: l_k a_v(k, n), the weighed seconds of a batch."""
    forward: Floats
    """[size, node]: f"""
    through: Floats
    """[size, node]: f + i"""
    whole: Floats
    """[size, node]: f + i + w"""
    inputs: Floats
    """[node]: i at the best size."""
    weights: Floats
    """[node]: w at the best size."""
    forward_rate: Floats
    """[node]: weighed seconds of forward for a sample."""
    backward_rate: Floats
    """[node]: weighed seconds of both gradients for a sample."""
    closing: Floats
    """[node]: seconds of the update of the node's own weights, on the best type."""
    updating: Floats
    """[node]: weighed seconds of their memory traffic; launches, which stages share, left out."""
    update_s: float
    """The same for all weights, those that several nodes read once."""
    least_share: float
    """min_k l_k"""
    most_share: float
    """max_k l_k"""
    task_s: float
    """What the runtime takes for a task at the least."""

    @property
    def least_work(self) -> Floats:
        """By node."""
        least: Floats = self.work.min(axis=0)
        return least


def collect_costs(problem: Problem) -> NodeCosts:
    """The costs of all nodes on the device types that the cluster has."""
    counts = numpy.bincount(problem.type_index_by_device, minlength=len(problem.cluster.types))
    used = numpy.flatnonzero(counts)
    backward = problem.needs_backward[None, None, :]
    forward = problem.forward_s[used]
    inputs = numpy.where(backward, problem.input_grad_s[used], 0.0)
    weights = numpy.where(backward, problem.weight_grad_s[used], 0.0)
    blocked = numpy.where(find_fitting(problem)[used], 0.0, math.inf)
    samples = numpy.array(problem.sample_sizes, dtype=float)[None, :, None]
    seconds = problem.training.batch_size * (forward + inputs + weights) / samples + blocked
    shares = _weigh_types(counts[used], seconds)
    weighed = shares[:, None, None] / samples
    own = numpy.where(problem.needs_backward, problem.trained_elements, 0)
    updates = numpy.array([time_update(problem, problem.cluster.types[kind], own) for kind in used])
    launches = numpy.array([_launch_time(problem, int(kind)) for kind in used])
    traffic = numpy.maximum(updates - launches[:, None], 0.0)
    tied = sum(
        tie.trained_elements
        for tie in problem.ties
        if problem.needs_backward[list(tie.readers)].any()
    )
    extra = [time_update(problem, problem.cluster.types[kind], tied) for kind in used]
    return NodeCosts(
        work=(shares[:, None, None] * seconds).min(axis=0),
        forward=(forward + blocked).min(axis=0),
        through=(forward + inputs + blocked).min(axis=0),
        whole=(forward + inputs + weights + blocked).min(axis=0),
        inputs=inputs.min(axis=(0, 1)),
        weights=weights.min(axis=(0, 1)),
        forward_rate=(weighed * forward + blocked).min(axis=(0, 1)),
        backward_rate=(weighed * (inputs + weights) + blocked).min(axis=(0, 1)),
        closing=updates.min(axis=0),
        updating=(shares[:, None] * traffic).min(axis=0),
        update_s=float((shares * (traffic.sum(axis=1) + extra - launches * (tied > 0))).min()),
        least_share=float(shares.min()),
        most_share=float(shares.max()),
        task_s=min(problem.cluster.types[kind].task_s for kind in used),
    )


def find_fitting(problem: Problem) -> NDArray[numpy.bool_]:
    """[type, size, node]: whether a device of the type can hold the node alone, one in flight."""
    tied, held = numpy.zeros(problem.num_nodes), numpy.array(problem.held_bytes, dtype=float)
    for tie in problem.ties:
        tied[list(tie.readers)] += tie.trained_elements
        held[list(tie.readers)] += tie.held_bytes
    saved = problem.saved_bytes.copy()
    for save in problem.saves:
        saved[:, list(save.savers)] += numpy.array(save.bytes_by_size)[:, None]
    # A stage around the node may have none of its borders: no buffers.
    alone = StageSums(
        forward_s=0.0,
        input_grad_s=0.0,
        weight_grad_s=0.0,
        own_elements=problem.trained_elements,
        tied_elements=tied,
        held_bytes=held,
        saved_bytes=saved,
        saved_for_weights_bytes=0,
        workspace_bytes=problem.workspace_bytes,
        entering_bytes=0,
        received_bytes=0,
        entering_buffer_bytes=0,
        leaving_buffer_bytes=0,
        trains=problem.needs_backward,
        returns=True,
    )
    widest = Sharing(problem.zero_levels[-1], problem.num_stood_for)
    needed = numpy.minimum(
        *(count_memory(problem, alone, sharing=each).total(1) for each in (ALONE, widest))
    )
    limits = numpy.zeros(len(problem.cluster.types))
    for device, kind in zip(problem.cluster.devices, problem.type_index_by_device, strict=True):
        limits[kind] = device.memory_bytes
    fits: NDArray[numpy.bool_] = needed[None] <= limits[:, None, None]
    return fits


def _weigh_types(counts: Ints, seconds: Floats) -> Floats:
    """l_k: each type's speed on what it can hold, scaled so that sum_k N_k l_k = 1."""
    least = seconds.min(axis=1)
    totals = numpy.where(numpy.isfinite(least), least, 0.0).sum(axis=1)
    speeds = 1 / numpy.maximum(totals, 1e-300)
    shares: Floats = speeds / (counts * speeds).sum()
    return shares


def _launch_time(problem: Problem, kind: int) -> float:
    """What an update takes however small; a measured one has no such part."""
    device_type = problem.cluster.types[kind]
    return 0.0 if device_type.update_s_per_element is not None else device_type.launch_s
