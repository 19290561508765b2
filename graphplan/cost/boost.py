"""Boosted trees: the baseline of the learned costs, in numpy.

Gradient boosting (Friedman 2001) with histograms and trees of equal depth. A tree adds to the log
of every op's time over its roofline; the loss compares the sum over a unit with its measured time.
With p_i the seconds of an op and P the sum of its unit, the error r = log P - log measured has the
derivative p_i / P with respect to the tree's answer for op i, which also serves as curvature. Large
errors are clipped: a disturbed measurement must not bend the trees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy

from graphplan.cost.features import FAMILIES, Floats
from graphplan.cost.lessons import FLOOR_S, Rows
from graphplan.cost.trees import Tree, TreeGrower, Trees

CLIP = 0.5
"""Errors in log seconds beyond this count as this much."""
KIND_PRIOR = 4.0
"""Units of weight that pull the mean of an op kind towards that of its family."""


@dataclasses.dataclass(frozen=True)
class Boost:
    """Means by op kind and family, and trees, for every pass."""

    kinds: tuple[str, ...]
    kind_means: Floats
    """[kind, pass]"""
    families: tuple[str, ...]
    family_means: Floats
    """[family, pass]"""
    trees: tuple[Trees, ...]

    def predict(self, values: Floats, kinds: Sequence[str], families: Sequence[str]) -> Floats:
        """[row, pass]: log of seconds over the roofline."""
        known, kin = (
            {name: i for i, name in enumerate(each)} for each in (self.kinds, self.families)
        )
        means = numpy.array(
            [
                self.kind_means[known[kind]]
                if kind in known
                else (self.family_means[kin[family]] if family in kin else numpy.zeros(3))
                for kind, family in zip(kinds, families, strict=True)
            ]
        ).reshape(-1, 3)
        wide = numpy.concatenate([values, means], axis=1)
        return means + numpy.stack([each.predict(wide) for each in self.trees], axis=1)


Report = Callable[[int, float], None]
"""Told the number of trees and the error on validation."""


def fit_boost(
    train: Rows,
    valid: Rows,
    *,
    seed: int,
    num_trees: int = 300,
    depth: int = 5,
    patience: int = 30,
    report: Report | None = None,
) -> Boost:
    """Boosted trees for every pass, each as long as the error on validation falls."""
    start = _fit_means(train)
    wanted = _Growth(num_trees, depth, patience, report)
    trees = []
    for index in range(train.reference_s.shape[1]):
        learning, checking = (_Pass(start, rows, index) for rows in (train, valid))
        source = numpy.random.default_rng((seed, index))
        trees.append(_fit_pass(learning, checking, wanted, source))
    return dataclasses.replace(start, trees=tuple(trees))


@dataclasses.dataclass(frozen=True)
class _Growth:
    """How many trees of which depth, and when to stop."""

    num_trees: int
    depth: int
    patience: int
    report: Report | None


def _fit_means(rows: Rows) -> Boost:
    """Mean log ratio of every kind and family, weighted by the share of the unit's roofline."""
    target, weight = _split_targets(rows)
    families = FAMILIES
    kinds = tuple(sorted(set(rows.kinds)))
    overall = (target * weight).sum(0) / numpy.maximum(weight.sum(0), 1e-9)
    family_means = _average(
        rows.families, families, target, weight, numpy.tile(overall, (len(families), 1))
    )
    family_of = dict(zip(rows.kinds, rows.families, strict=True))
    prior = numpy.array([family_means[families.index(family_of[kind])] for kind in kinds])
    kind_means = _average(rows.kinds, kinds, target, weight, prior)
    return Boost(kinds, kind_means, families, family_means, ())


def _split_targets(rows: Rows) -> tuple[Floats, Floats]:
    """Log ratio of each row's unit to its roofline, and the row's share of the unit."""
    roofs = numpy.zeros_like(rows.measured_s)
    numpy.add.at(roofs, rows.unit_by_row, rows.reference_s)
    measured = numpy.log((rows.measured_s + FLOOR_S) / (roofs + FLOOR_S))
    share = rows.reference_s / numpy.maximum(roofs[rows.unit_by_row], 1e-30)
    return measured[rows.unit_by_row], share


def _average(
    names: Sequence[str], known: Sequence[str], target: Floats, weight: Floats, prior: Floats
) -> Floats:
    index = {name: i for i, name in enumerate(known)}
    place = numpy.array([index[name] for name in names], dtype=numpy.int64)
    total, count = numpy.zeros_like(prior), numpy.zeros_like(prior)
    numpy.add.at(total, place, target * weight)
    numpy.add.at(count, place, weight)
    mixed: Floats = (total + KIND_PRIOR * prior) / (count + KIND_PRIOR)
    return mixed


def _fit_pass(
    learning: _Pass, checking: _Pass, wanted: _Growth, source: numpy.random.Generator
) -> Trees:
    """The trees of one pass."""
    grower = TreeGrower(learning.values, wanted.depth)
    grown: list[Tree] = []
    best, best_count = checking.error(), 0
    while len(grown) < wanted.num_trees and len(grown) - best_count < wanted.patience:
        slope, weight = learning.find_slopes()
        tree = grower.grow(slope, weight, source)
        grown.append(tree)
        learning.add(tree)
        checking.add(tree)
        if checking.error() < best - 1e-5:
            best, best_count = checking.error(), len(grown)
        if wanted.report is not None:
            wanted.report(len(grown), best)
    kept = grown[:best_count]
    inner, leaves = 2**wanted.depth - 1, 2**wanted.depth
    return Trees(
        columns=numpy.array([t[0] for t in kept], dtype=numpy.int16).reshape(-1, inner),
        cuts=numpy.array([t[1] for t in kept], dtype=numpy.float32).reshape(-1, inner),
        leaves=numpy.array([t[2] for t in kept], dtype=numpy.float32).reshape(-1, leaves),
    )


class _Pass:
    """The rows that have one pass, with the answer so far."""

    def __init__(self, start: Boost, rows: Rows, index: int) -> None:
        zero = Trees(
            numpy.zeros((0, 1), numpy.int16), numpy.zeros((0, 1), numpy.float32),
            numpy.zeros((0, 2), numpy.float32),
        )  # fmt: skip
        has = rows.reference_s[:, index] > 0
        kinds = [kind for kind, one in zip(rows.kinds, has, strict=True) if one]
        families = [family for family, one in zip(rows.families, has, strict=True) if one]
        plain = dataclasses.replace(start, trees=(zero,) * rows.reference_s.shape[1])
        means = plain.predict(rows.values[has], kinds, families)
        self.values = numpy.concatenate([rows.values[has], means], axis=1).astype(numpy.float32)
        self.answer = means[:, index].copy()
        self._reference = rows.reference_s[has, index]
        self._unit = rows.unit_by_row[has]
        self._goal = numpy.log(rows.measured_s[:, index] + FLOOR_S)
        self._units = numpy.unique(self._unit)

    def _compare(self) -> tuple[Floats, Floats]:
        """(error of every unit, share of every row in its unit)."""
        seconds = self._reference * numpy.exp(self.answer)
        total = numpy.bincount(self._unit, seconds, minlength=len(self._goal))
        return numpy.log(total + FLOOR_S) - self._goal, seconds / total[self._unit]

    def error(self) -> float:
        """Mean absolute error of the units."""
        found = self._compare()[0][self._units]
        return float(numpy.abs(found).mean()) if len(found) else 0.0

    def find_slopes(self) -> tuple[Floats, Floats]:
        """First and second derivative of the loss at every row."""
        error, share = self._compare()
        return numpy.clip(error, -CLIP, CLIP)[self._unit] * share, share

    def add(self, tree: Tree) -> None:
        """Count one more tree."""
        single = Trees(tree[0][None], tree[1][None].astype(numpy.float32), tree[2][None])
        self.answer += single.predict(self.values)
