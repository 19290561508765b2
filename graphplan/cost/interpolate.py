"""Times at micro-batch sizes that were not measured: between the measured ones, or by a fit.

Between two measured sizes the time runs straight; measured times that fall with the size (noise)
are levelled first, so that more samples never take less. Beyond them the slope of a fit
a + b * n continues, with a, b >= 0: below the smallest size the time does not sink under the floor
a, so that small micro-batches are never assumed proportional. How well the fit describes the
measured times is kept as `fit_error`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun
from graphplan.nouns.table import OpProfile, ProfileTable


class AffineFit(Noun, frozen=True, kw_only=True):
    """base + slope * n, both at least 0."""

    base: float
    slope: float
    error: float
    """Largest relative error at the fitted points."""

    def at(self, size: float) -> float:
        """The fitted value."""
        return self.base + self.slope * size


def expand_table(table: ProfileTable, batch_sizes: Sequence[int]) -> ProfileTable:
    """The table with columns for exactly these micro-batch sizes."""
    sizes = tuple(sorted(set(batch_sizes)))
    if sizes == table.batch_sizes:
        return table
    unknown = [size for size in sizes if size not in table.batch_sizes]
    if unknown and len(table.batch_sizes) == 1:
        raise InvalidOption(
            f"The table holds times for micro-batches of {table.batch_sizes[0]} only; times for"
            f" {unknown[0]} cannot be told from one size.",
            remedy=f"Profile two sizes or more: --batch-sizes {_suggest_sizes(table, sizes)}.",
        )
    known: dict[tuple[object, ...], OpProfile] = {}
    rows = []
    for row in table.rows:
        # Equal layers have equal columns: each different row is expanded once.
        key = (row.forward_s, row.input_grad_s, row.weight_grad_s, row.workspace_bytes)
        if key not in known:
            known[key] = _expand_row(row, table.batch_sizes, sizes)
        rows.append(_copy_columns(known[key], row))
    return ProfileTable(
        graph=table.graph,
        device=table.device,
        source=table.source,
        batch_sizes=sizes,
        rows=tuple(rows),
        calibration=_expand_flat(table.batch_sizes, table.calibration, sizes),
        update_s_per_element=table.update_s_per_element,
        host=table.host,
        provenance=table.provenance,
        step_uncertainty=table.step_uncertainty,
    )


LEAST_S = 1e-30
"""Shorter times count as none; their squares would vanish."""


def fit_affine(sizes: Sequence[float], values: Sequence[float]) -> AffineFit:
    """Least squares of relative errors with non-negative base and slope."""
    pairs = zip(sizes, values, strict=True)
    points = [(float(x), y, 1 / (y * y)) for x, y in pairs if y > LEAST_S]
    if not points:
        return AffineFit(base=0.0, slope=0.0, error=0.0)
    base, slope = _solve_affine(points)
    error = max(abs(base + slope * x - y) / y for x, y, _ in points)
    return AffineFit(base=base, slope=slope, error=error)


def interpolate_column(
    sizes: Sequence[int], values: Sequence[float], wanted: Sequence[int]
) -> tuple[float, ...]:
    """Values at the wanted sizes; growing with the size, never below the floor of the fit."""
    levelled = _level_values(values)
    fit = fit_affine(sizes, values)
    return tuple(_interpolate(sizes, levelled, fit, size) for size in wanted)


def _expand_row(row: OpProfile, old: tuple[int, ...], new: tuple[int, ...]) -> OpProfile:
    columns = (row.forward_s, row.input_grad_s, row.weight_grad_s)
    forward, inputs, weights = (interpolate_column(old, column, new) for column in columns)
    total = [sum(parts) for parts in zip(*columns, strict=True)]
    return OpProfile(
        op=row.op,
        forward_s=forward,
        input_grad_s=inputs,
        weight_grad_s=weights,
        workspace_bytes=tuple(
            round(value) for value in interpolate_column(old, row.workspace_bytes, new)
        ),
        fit_error=fit_affine(old, total).error,
    )


def _copy_columns(columns: OpProfile, row: OpProfile) -> OpProfile:
    """A row's own facts with the columns of another."""
    return OpProfile(
        op=row.op,
        forward_s=columns.forward_s,
        input_grad_s=columns.input_grad_s,
        weight_grad_s=columns.weight_grad_s,
        workspace_bytes=columns.workspace_bytes,
        spread=row.spread,
        fit_error=columns.fit_error,
        group=row.group,
        extrapolated=row.extrapolated,
        uncertainty=row.uncertainty,
    )


def _interpolate(sizes: Sequence[int], values: Sequence[float], fit: AffineFit, size: int) -> float:
    if size <= sizes[0]:
        return max(values[0] - fit.slope * (sizes[0] - size), min(fit.base, values[0]))
    if size >= sizes[-1]:
        return values[-1] + fit.slope * (size - sizes[-1])
    right = bisect.bisect_left(sizes, size)
    left = right - 1
    share = (size - sizes[left]) / (sizes[right] - sizes[left])
    return values[left] + share * (values[right] - values[left])


def _level_values(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence: pool neighbours that fall (isotonic regression)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, m), (high, n) = pools.pop(), pools.pop()
            pools.append(((low * m + high * n) / (m + n), m + n))
    return [value for value, count in pools for _ in range(count)]


def _solve_affine(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Weighted least squares; when a coefficient would be negative it is 0."""
    w = sum(p[2] for p in points)
    x = sum(p[2] * p[0] for p in points)
    y = sum(p[2] * p[1] for p in points)
    xx = sum(p[2] * p[0] * p[0] for p in points)
    xy = sum(p[2] * p[0] * p[1] for p in points)
    determinant = w * xx - x * x
    if determinant > 1e-12 * w * xx:
        slope = (w * xy - x * y) / determinant
        base = (y - slope * x) / w
        if slope >= 0 and base >= 0:
            return base, slope
        if slope > 0:
            return 0.0, xy / xx
    return y / w, 0.0


def _expand_flat(
    old: Sequence[int], values: Sequence[float], new: Sequence[int]
) -> tuple[float, ...]:
    """Straight between the known sizes, the nearest value beyond them."""
    if not values:
        return ()
    flat = AffineFit(base=0.0, slope=0.0, error=0.0)
    first, last = old[0], old[-1]
    return tuple(_interpolate(old, values, flat, min(max(size, first), last)) for size in new)


def _suggest_sizes(table: ProfileTable, wanted: Sequence[int]) -> str:
    sizes = sorted({table.batch_sizes[0], min(wanted), max(wanted)})
    return ",".join(map(str, sizes))
