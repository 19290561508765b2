"""Residual: what boosted trees have learned of measured seconds over a law's.

Laws have a dozen figures; libraries choose among hundreds of kernels. Trees over sizes, remainders,
waves and the device's rates predict the logarithm of measured over estimated seconds. They are
numbers in `profiles/laws/residual.json.gz`, grown by tools/fit_residual.py, and are used on devices
whose profile says so (`residual`): those that were measured, and boards with the same chip.

It breaks for sizes far outside the measured ones; answers are clipped to what was seen there.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources

import msgspec
import numpy

from graphplan.cost.arrays import unpack_array
from graphplan.cost.laws.gemm import TILES, Floats
from graphplan.cost.trees import Trees
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.learned import Array

PARTS = ("columns", "cuts", "leaves")
MOST = 0.5
"""Largest logarithm of a correction."""


class ResidualFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trees by class of kernel."""

    source: str
    classes: tuple[str, ...]
    arrays: dict[str, Array]
    """`trees.columns gemm`, `trees.cuts gemm`, `trees.leaves gemm`, …"""


def read_features(sizes: Floats, seconds: Floats, device: DeviceType, rate: float) -> Floats:
    """[kernel, feature] of kernels of one class with their estimated seconds."""
    units = max(device.num_units, 1)
    logs = numpy.log2(numpy.maximum(sizes, 0.5))
    columns = [*logs.T, numpy.log(seconds)]
    if sizes.shape[1] < 8:
        batch, rows, width, inner = sizes[:, :4].T
        for tall, wide in TILES[[0, 3, 7, 9]]:
            tiles = batch * numpy.ceil(rows / tall) * numpy.ceil(width / wide)
            columns += [tiles / units / numpy.ceil(tiles / units), numpy.log(tiles / units)]
        moved = batch * (rows * inner + inner * width + rows * width)
        columns += [numpy.log(batch * rows * width * inner / moved), numpy.log(moved)]
        columns += [rows % 128, width % 128, width % 4, inner % 4, rows % 4, inner % 64]
    else:
        batch, heads, key_heads, queries, _, head, _, _ = sizes.T
        for block in (64.0, 128.0):
            blocks = batch * heads * numpy.ceil(queries / block)
            columns += [blocks / units / numpy.ceil(blocks / units), numpy.log(blocks / units)]
        columns += [heads / key_heads, numpy.log(batch * heads), numpy.log(batch * queries)]
        columns += [numpy.log(batch * heads * queries * head)]
    own = (rate / units, device.bandwidth_bytes_per_s / rate, units, max(device.cache_bytes, 1))
    columns += [numpy.full(len(sizes), numpy.log(value)) for value in own]
    return numpy.stack(columns, axis=1)


def correct_seconds(
    name: str, sizes: Floats, seconds: Floats, device: DeviceType, rate: float
) -> Floats:
    """Seconds with the residual of a class, where one was learned for the device."""
    trees = _load_trees().get(name) if device.residual is not None else None
    if trees is None:
        return seconds
    answer = trees.predict(read_features(sizes, seconds, device, rate))
    corrected: Floats = seconds * numpy.exp(numpy.clip(answer, -MOST, MOST))
    return corrected


@functools.cache
def _load_trees() -> dict[str, Trees]:
    path = importlib.resources.files("graphplan_profiles").joinpath("laws", "residual.json.gz")
    if not path.is_file():
        return {}
    file = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=ResidualFile)
    return {name: _unpack_trees(file.arrays, name) for name in file.classes}


def _unpack_trees(arrays: dict[str, Array], name: str) -> Trees:
    """The trees of a class."""
    parts = {part: unpack_array(arrays, f"trees.{part} {name}", (None, None)) for part in PARTS}
    return Trees(**parts)
