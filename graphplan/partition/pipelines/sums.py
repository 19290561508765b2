"""What tables of stages have in common, whatever the cuts: all that is a sum over nodes."""

from __future__ import annotations

import abc
import dataclasses
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray

from graphplan.nouns.problem import Floats, Ints, Problem
from graphplan.partition.pipelines.remember import remember


@dataclasses.dataclass(frozen=True)
class IntervalTimes:
    """Seconds of one micro-batch."""

    forward_s: Floats
    backward_s: Floats

    def total(self, *, recompute: bool) -> Floats:
        """Forward and backward, recomputation included where there is a backward."""
        again = numpy.where(self.backward_s > 0, self.forward_s, 0.0) if recompute else 0.0
        return self.forward_s + self.backward_s + again


@dataclasses.dataclass(frozen=True)
class IntervalBytes:
    """Memory on one replica."""

    fixed: Ints
    """Weights, gradients, optimizer, buffers and workspace."""
    saved: Ints
    """Of each micro-batch in flight."""


class StageSums(abc.ABC):
    """Tables [i, j] of the stages between cuts i and j."""

    problem: Problem
    num_blocks: int
    """The number of the last cut."""

    @abc.abstractmethod
    def _sum_nodes(self, values: Any) -> Any:
        """Table of sums of a row by node over the nodes of every stage."""

    @remember
    def count_pins(self) -> Ints:
        """Different devices to which nodes of a stage are pinned."""
        counts = numpy.zeros((self.num_blocks, self.num_blocks + 1), dtype=numpy.int64)
        for device in set(self.problem.pins.values()):
            pinned = numpy.zeros(self.problem.num_nodes, dtype=numpy.int64)
            pinned[[node for node, d in self.problem.pins.items() if d == device]] = 1
            counts += self._sum_nodes(pinned) > 0
        return counts

    @remember
    def times(self, types: tuple[int, ...], size: int) -> IntervalTimes:
        """Seconds at a sample size (its index) on the slowest of these device types."""
        problem = self.problem
        forward, inputs, weights = (
            numpy.max([self._sum_nodes(array[kind, size]) for kind in types], axis=0)
            for array in (problem.forward_s, problem.input_grad_s, problem.weight_grad_s)
        )
        return IntervalTimes(forward, numpy.where(self._needs_backward, inputs + weights, 0.0))

    @cached_property
    def _needs_backward(self) -> NDArray[numpy.bool_]:
        needs: NDArray[numpy.bool_] = (
            self._sum_nodes(self.problem.needs_backward.astype(numpy.int64)) > 0
        )
        return needs
