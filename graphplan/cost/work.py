"""Work of nodes: the times that searches use before they know which device runs what.

On a cluster of unequal devices a pipeline can at best share the work in proportion to their speeds,
so that the mean device runs at the mean of all speeds. Speeds are those on the whole graph.
"""

from __future__ import annotations

import dataclasses

import numpy

from graphplan.nouns.problem import Floats, Problem


@dataclasses.dataclass(frozen=True)
class MeanTimes:
    """Seconds of every node on the mean device."""

    forward_s: Floats
    """[size, node]"""
    input_grad_s: Floats
    """[size, node]: 0 for nodes without backward"""
    weight_grad_s: Floats
    """[size, node]: the same"""
    work: Floats
    """[node]: forward and backward at the middle size"""
    weight: Floats
    """[node]: the share of all work, or a quarter of the share of all weights if that is larger:
    weights only matter where they are too large for a device"""

    @property
    def busy_s(self) -> Floats:
        """[size, node]: forward and backward"""
        total: Floats = self.forward_s + self.input_grad_s + self.weight_grad_s
        return total


def measure_times(problem: Problem) -> MeanTimes:
    """Times of the mean device, by size and node."""
    shares, trains = _share_types(problem), problem.needs_backward
    forward_s, input_grad_s, weight_grad_s = (
        numpy.einsum("t,tsn->sn", shares, array)
        for array in (
            problem.forward_s,
            problem.input_grad_s * trains,
            problem.weight_grad_s * trains,
        )
    )
    middle = len(problem.sample_sizes) // 2
    work = (forward_s + input_grad_s + weight_grad_s)[middle]
    share_of_weights = problem.trained_elements / max(1, problem.trained_elements.sum())
    weight = numpy.maximum(work / max(1e-30, work.sum()), share_of_weights / 4)
    return MeanTimes(forward_s, input_grad_s, weight_grad_s, work, weight)


def _share_types(problem: Problem) -> Floats:
    """Shares of the types' times whose sum is the time of the mean device."""
    counts = numpy.bincount(problem.type_index_by_device, minlength=len(problem.cluster.types))
    middle = len(problem.sample_sizes) // 2
    totals = (problem.forward_s + problem.input_grad_s + problem.weight_grad_s)[:, middle].sum(1)
    shares: Floats = counts / counts.sum()
    if totals.all():
        shares *= 1 / (shares / totals).sum() / (shares * totals).sum()
    return shares
