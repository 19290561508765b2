"""Step over sum: what a whole step takes beyond the sum of its ops, learned from calibrations.

An op alone finds its operands in the cache and its gradients unshared; in a step it does not. The
ratio is fitted by ridge regression on a few figures of the whole graph: ops, bytes, gradients that
are summed at forks and weights, each over the sum of the ops' seconds, and how large the step is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from graphplan.cost.estimate import PASSES
from graphplan.cost.features import FEATURES, Floats, GraphFeatures
from graphplan.cost.lessons import Lesson

RIDGE = 3e-3
LEAST, MOST = 0.7, 3.0
"""No ratio is told outside of these."""


@dataclasses.dataclass(frozen=True)
class RatioFit:
    """Coefficients of the standardised figures, the first for the constant."""

    mean: Floats
    deviation: Floats
    coefficients: Floats
    error: float
    """Standard deviation of the log of the ratio."""

    def predict(self, features: GraphFeatures, sums_s: Floats) -> Floats:
        """The ratio at every size; within the range of the figures in training."""
        if not len(self.coefficients):
            return numpy.ones(len(sums_s))
        figures = (_describe(features, sums_s) - self.mean) / self.deviation
        figures = numpy.clip(figures, -3.0, 3.0)
        ratios = self.coefficients[0] + figures @ self.coefficients[1:]
        return numpy.asarray(numpy.clip(ratios, LEAST, MOST))


def fit_ratio(lessons: Sequence[Lesson]) -> RatioFit:
    """The fit to all lessons whose steps were measured; ratio 1 where there is none."""
    measured = [lesson for lesson in lessons if len(lesson.ratios)]
    if not measured:
        nothing = numpy.zeros(0)
        return RatioFit(nothing, nothing, nothing, 0.0)
    figures = numpy.concatenate([_describe(each.features, each.sums_s) for each in measured])
    ratios = numpy.concatenate([each.ratios for each in measured])
    mean, deviation = figures.mean(0), figures.std(0) + 1e-9
    weight = 1 / ratios
    matrix = numpy.column_stack([numpy.ones(len(figures)), (figures - mean) / deviation])
    matrix *= weight[:, None]
    prior = RIDGE * len(figures) * numpy.diag([0.0, *numpy.ones(figures.shape[1])])
    coefficients = numpy.linalg.solve(matrix.T @ matrix + prior, matrix.T @ (ratios * weight))
    fit = RatioFit(mean, deviation, coefficients, 0.0)
    return dataclasses.replace(fit, error=measure_ratio(fit, measured))


def measure_ratio(fit: RatioFit, lessons: Sequence[Lesson]) -> float:
    """Root mean square of the log errors of the ratio on lessons with measured steps."""
    errors = [
        numpy.log(fit.predict(each.features, each.sums_s) / each.ratios)
        for each in lessons
        if len(each.ratios)
    ]
    return float(numpy.sqrt((numpy.concatenate(errors) ** 2).mean())) if errors else 0.0


def _describe(features: GraphFeatures, sums_s: Floats) -> Floats:
    """[size, figure]: what a whole step looks like."""

    def column(name: str) -> Floats:
        return features.values[:, :, FEATURES.index(name)]

    def total(name: str) -> Floats:
        return numpy.asarray(numpy.expm1(column(name)).sum(1))

    seconds = numpy.maximum(sums_s, 1e-9)
    forwards = numpy.asarray((features.reference_s[:, :, 0] > 0).sum(1))
    backwards = numpy.asarray((features.reference_s[:, :, 1:].sum(2) > 0).sum(1))
    moved = numpy.sum([total(f"{name} bytes") for name in PASSES], axis=0)
    flops = numpy.sum([total(f"{name} flops") for name in PASSES], axis=0)
    live, weights = total("results live"), 4 * total("weight elements")
    forks = numpy.expm1(column("result elements")) * (column("readers") > numpy.log(2.5))
    summed = 4 * numpy.asarray((forks * column("input_grad exists")).sum(1))
    per_s = 1e-9 / seconds
    return numpy.column_stack([
        1e-6 * forwards / seconds, 1e-6 * backwards / seconds, moved * per_s, live * per_s,
        weights * per_s, summed * per_s, numpy.log((forwards + 1) / seconds),
        numpy.log((moved + 1) / seconds), numpy.log((live + 1) / seconds),
        numpy.log((flops + 1) / seconds), numpy.log(live + 1), numpy.log(seconds),
    ])  # fmt: skip
