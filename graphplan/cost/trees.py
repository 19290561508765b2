"""Regression trees of equal depth, grown level by level from histograms (numpy)."""

from __future__ import annotations

import dataclasses

import numpy
from numpy.typing import NDArray

from graphplan.cost.laws.gemm import Floats

Ints = NDArray[numpy.int64]

NUM_BINS = 48
SHRINKAGE = 0.08
"""Share of its answer that every tree adds."""
LEAF_PRIOR = 3.0
"""Units of weight that pull every leaf towards 0."""
COLUMN_SHARE = 0.5
"""Share of the columns that a tree may look at."""

Tree = tuple[Ints, Floats, Floats]
"""Column and cut of every inner node, breadth first, and the answer of every leaf."""


@dataclasses.dataclass(frozen=True)
class Trees:
    """Trees of one pass: complete, nodes in breadth-first order."""

    columns: NDArray[numpy.integer]
    """[tree, inner node]: the feature to look at."""
    cuts: NDArray[numpy.floating]
    """[tree, inner node]: go right above this."""
    leaves: NDArray[numpy.floating]
    """[tree, leaf]"""

    def predict(self, values: NDArray[numpy.floating]) -> Floats:
        """The sum of all trees' answers for every row."""
        total = numpy.zeros(len(values))
        rows = numpy.arange(len(values))
        depth = int(numpy.log2(self.leaves.shape[1])) if len(self.leaves) else 0
        single = values.astype(numpy.float32)
        for columns, cuts, leaves in zip(self.columns, self.cuts, self.leaves, strict=True):
            node = numpy.zeros(len(values), dtype=numpy.int64)
            for _ in range(depth):
                node = 2 * node + 1 + (single[rows, columns[node]] > cuts[node])
            total += leaves[node - (len(leaves) - 1)]
        return total


class TreeGrower:
    """Grows trees on one set of rows, level by level, from histograms."""

    def __init__(self, values: NDArray[numpy.float32], depth: int) -> None:
        self._depth = depth
        shares = numpy.linspace(0, 1, NUM_BINS + 1)[1:-1]
        self._edges = (
            [numpy.unique(numpy.quantile(column, shares, method="lower")) for column in values.T]
            if len(values)
            else []
        )
        self._bins = numpy.stack(
            [
                numpy.searchsorted(edges, column, side="left")
                for edges, column in zip(self._edges, values.T, strict=True)
            ],
            axis=1,
        )
        self._useful = numpy.array([i for i, edges in enumerate(self._edges) if len(edges) > 1])

    def grow(self, slope: Floats, weight: Floats, source: numpy.random.Generator) -> Tree:
        """A tree that follows the slopes downhill."""
        count = max(1, int(COLUMN_SHARE * len(self._useful)))
        chosen = source.choice(self._useful, count, replace=False)
        bins = self._bins[:, chosen]
        inner = 2**self._depth - 1
        columns, cuts = numpy.zeros(inner, dtype=numpy.int64), numpy.full(inner, numpy.inf)
        node = numpy.zeros(len(slope), dtype=numpy.int64)
        for level in range(self._depth):
            first, width = 2**level - 1, 2**level
            best, place = self._find_cuts(bins, node, width, slope, weight)
            for i in range(width):
                column = int(chosen[best[i]])
                columns[first + i] = column
                edges = self._edges[column]
                cuts[first + i] = edges[place[i]] if place[i] < len(edges) else numpy.inf
            right = bins[numpy.arange(len(node)), best[node]] > place[node]
            node = 2 * node + right
        leaves = 2**self._depth
        total = numpy.bincount(node, slope, minlength=leaves)
        mass = numpy.bincount(node, weight, minlength=leaves)
        return columns, cuts, -SHRINKAGE * total / (mass + LEAF_PRIOR)

    @staticmethod
    def _find_cuts(
        bins: Ints, node: Ints, width: int, slope: Floats, weight: Floats
    ) -> tuple[Ints, Ints]:
        """The column and the bin after which each node of a level is cut."""
        num_columns = bins.shape[1]
        place = (node[:, None] * num_columns + numpy.arange(num_columns)) * NUM_BINS + bins
        shape = (width, num_columns, NUM_BINS)
        flat = place.ravel()
        left_slope, left_weight = (
            numpy.bincount(
                flat, numpy.repeat(each, num_columns), minlength=width * num_columns * NUM_BINS
            )
            .reshape(shape)
            .cumsum(2)
            for each in (slope, weight)
        )
        all_slope, all_weight = left_slope[:, :1, -1:], left_weight[:, :1, -1:]
        gain = left_slope**2 / (left_weight + LEAF_PRIOR) + (all_slope - left_slope) ** 2 / (
            all_weight - left_weight + LEAF_PRIOR
        )
        best = gain.reshape(width, -1).argmax(1)
        return best // NUM_BINS, best % NUM_BINS
