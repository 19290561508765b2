"""Arrays of a learned cost model: numpy in memory, plain bytes in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from graphplan.errors import InvalidFile
from graphplan.nouns.learned import ARRAY_BYTES, Array


def pack_array(values: NDArray[Any]) -> Array:
    """An array as a file holds it."""
    dtype: Any = values.dtype.name
    assert dtype in ARRAY_BYTES, dtype
    plain = numpy.ascontiguousarray(values, dtype=numpy.dtype(dtype).newbyteorder("<"))
    return Array(dtype=dtype, shape=values.shape, content=plain.tobytes())


def unpack_array(arrays: Mapping[str, Array], name: str, shape: tuple[int | None, ...]) -> Any:
    """The array of a name; `shape` has None where any length will do."""
    found = arrays.get(name)
    if found is None:
        raise _broken(f"lacks the array {name!r}")
    fits = len(found.shape) == len(shape) and all(
        wanted is None or wanted == size for wanted, size in zip(shape, found.shape, strict=False)
    )
    if not fits:
        raise _broken(f"has the array {name!r} in the shape {list(found.shape)}")
    kind = numpy.dtype(found.dtype).newbyteorder("<")
    values = numpy.frombuffer(found.content, dtype=kind).astype(found.dtype)
    if not name.startswith("trees.cuts") and not numpy.isfinite(values).all():
        raise _broken(f"has a number in {name!r} that is not finite")
    return values.reshape(found.shape)


def _broken(what: str) -> InvalidFile:
    return InvalidFile(
        f"The learned cost model {what}.",
        remedy="Train it again: graphplan learn -o cost.json.",
    )
