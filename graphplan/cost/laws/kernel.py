"""Kernels: what a pass of an op asks of a device, in the sizes that its class of law reads."""

from __future__ import annotations

from typing import Literal, NamedTuple

RowKind = Literal["norm", "softmax"]


class Product(NamedTuple):
    """A batch of matrix products: [rows, inner] times [inner, columns]."""

    dtype: str
    item_bytes: int
    batch: int
    rows: int
    columns: int
    inner: int

    @property
    def flops(self) -> float:
        """A multiply-add counts two."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner


class Convolution(NamedTuple):
    """A convolution as the product that it is: positions x channels, summed over the filter."""

    dtype: str
    item_bytes: int
    groups: int
    positions: int
    """Output positions of all samples."""
    channels: int
    """Output channels of a group."""
    inner: int
    """Input channels of a group times taps of the filter."""
    taps: int
    moved_bytes: int
    """Image, filter and result, each once."""
    unit_stride: bool
    padded: int
    """Output positions with every image rounded up to squares of 4 x 4; 0: they are summed."""

    @property
    def flops(self) -> float:
        """A multiply-add counts two."""
        return 2.0 * self.groups * self.positions * self.channels * self.inner


class Attention(NamedTuple):
    """Fused attention; the backward recomputes the scores: five products for two."""

    dtype: str
    item_bytes: int
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    head: int
    causal: bool
    backward: bool

    @property
    def flops(self) -> float:
        """Of the scores that a mask leaves."""
        seen = count_seen(self.queries, self.keys, causal=self.causal)
        return (10.0 if self.backward else 4.0) * self.batch * self.heads * seen * self.head


class Stream(NamedTuple):
    """Bytes that one or more plain kernels read and write."""

    num_bytes: int
    launches: int = 1

    @property
    def flops(self) -> float:
        """Arithmetic never bounds it."""
        return 0.0


class Rows(NamedTuple):
    """Rows that are reduced and rewritten: norms, softmax, cross-entropy."""

    kind: RowKind
    item_bytes: int
    rows: int
    columns: int
    passes: float
    """How often the tensor is read or written at least."""
    launches: int = 1

    @property
    def flops(self) -> float:
        """Arithmetic never bounds it."""
        return 0.0


Kernel = Product | Convolution | Attention | Stream | Rows


def count_seen(queries: int, keys: int, *, causal: bool) -> int:
    """Scores that are not masked; a causal mask starts at the first query and the first key."""
    if not causal:
        return queries * keys
    square = min(queries, keys)
    return square * (square + 1) // 2 + (queries - square) * keys
