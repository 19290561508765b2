"""TensorSpec: dtype and shape of a tensor, with the batch dimension symbolic.

A dimension is an int, or a text that is affine in the batch size b: "b", "12*b", "3*b+1", "b-1".
"""

from __future__ import annotations

import functools
import math
import re

from graphplan.nouns.base import Noun

Dim = int | str

ITEM_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element by dtype name (torch's names without the `torch.` prefix)."""

MAX_RANK = 64
MAX_ELEMENTS = 1 << 63
"""What torch can address."""

_DIM = re.compile(r"(?:([0-9]+)\*)?b(?:([+-][0-9]+))?")


@functools.lru_cache(maxsize=65536)
def parse_dim(dim: Dim) -> tuple[int, int]:
    """(scale, offset) of a dimension: its size is scale * b + offset."""
    if isinstance(dim, int):
        return 0, dim
    match = _DIM.fullmatch(dim)
    if match is None:
        raise ValueError(f"dimension {dim!r} is neither an integer nor of the form '12*b+1'")
    return int(match[1] or 1), int(match[2] or 0)


def format_dim(scale: int, offset: int) -> Dim:
    """The dimension scale * b + offset in its short form."""
    if scale == 0:
        return offset
    return ("" if scale == 1 else f"{scale}*") + "b" + (f"{offset:+d}" if offset else "")


class TensorSpec(Noun, frozen=True, kw_only=True):
    """A tensor's dtype and shape."""

    dtype: str
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(ITEM_BYTES)}")
        for dim in self.shape:
            if parse_dim(dim)[0] == 0 and parse_dim(dim)[1] < 0:
                raise ValueError(f"dimension {dim!r} is negative")
        sizes = (abs(scale) + abs(offset) for scale, offset in map(parse_dim, self.shape))
        if len(self.shape) > MAX_RANK or math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
            raise ValueError("the shape is too large for any tensor")

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def has_batch(self) -> bool:
        """Whether the size depends on the batch size."""
        return any(isinstance(dim, str) for dim in self.shape)

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """The shape at a batch size."""
        pairs = map(parse_dim, self.shape)
        return tuple(scale * batch_size + offset for scale, offset in pairs)

    def num_elements(self, batch_size: int) -> int:
        """Elements at a batch size."""
        return math.prod(self.sizes(batch_size))

    def num_bytes(self, batch_size: int) -> int:
        """Bytes at a batch size."""
        return self.num_elements(batch_size) * ITEM_BYTES[self.dtype]
