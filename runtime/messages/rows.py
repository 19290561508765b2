"""Rows: which samples of a batch every micro-batch and every replica works on.

Boundaries are those of an even split rounded down, m * rows // count. Splits of nested counts
(8 micro-batches at one stage, 4 at the next) then share their boundaries for every number of rows,
so that a last batch of any size runs under the same program; parts may differ by one row, and are
empty when there are fewer rows than parts.
"""

from __future__ import annotations

from typing import NamedTuple

from graphplan.nouns.tensor import TensorSpec, parse_dim


def split_rows(rows: range, num_parts: int, part: int) -> range:
    """One of `num_parts` even parts of consecutive rows."""
    first, size = rows.start, len(rows)
    return range(first + part * size // num_parts, first + (part + 1) * size // num_parts)


def overlap_rows(a: range, b: range) -> range:
    """The rows that two parts have in common."""
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))


class BatchAxis(NamedTuple):
    """The dimension of a tensor along which samples lie, `scale` consecutive entries for each."""

    dim: int
    scale: int


def find_axis(spec: TensorSpec) -> BatchAxis | None:
    """The one dimension that is proportional to the batch; None when there is no such dimension."""
    axes = [(i, *parse_dim(dim)) for i, dim in enumerate(spec.shape) if isinstance(dim, str)]
    if len(axes) != 1 or axes[0][2] != 0:
        return None
    return BatchAxis(dim=axes[0][0], scale=axes[0][1])


def count_rows(spec: TensorSpec, sizes: tuple[int, ...]) -> int | None:
    """The number of samples in a tensor of these sizes; None when they do not fit the spec."""
    if len(sizes) != len(spec.shape):
        return None
    found: set[int] = set()
    for dim, size in zip(spec.shape, sizes, strict=True):
        scale, offset = parse_dim(dim)
        rows, rest = divmod(size - offset, scale) if scale else (0, size - offset)
        if rest or rows < 0:
            return None
        if scale:
            found.add(rows)
    return found.pop() if len(found) == 1 else None
