"""Residual: what boosted trees have learned of measured seconds over a law's.

Laws have a dozen figures; libraries choose among hundreds of kernels. Trees over sizes, remainders,
waves and the law's seconds over those at the peak predict the logarithm of measured over estimated
seconds. Of the device they see the name of its chip alone (`residual` in its profile), so that
another board with the same chip (H200 of H100) is read as that chip: its memory shows in the law.
They are numbers in `profiles/laws/residual.json.gz`, grown by tools/fit_residual.py; a chip that a
class of kernels was not measured on is left to the law.

It breaks for sizes far outside the measured ones; answers are clipped to what was seen there.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
from collections.abc import Sequence
from typing import NamedTuple

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
    chips: dict[str, tuple[str, ...]]
    """By class: the chips that its trees know."""
    arrays: dict[str, Array]
    """`trees.columns gemm`, `trees.cuts gemm`, `trees.leaves gemm`, …"""


class Residual(NamedTuple):
    """What corrects one class of kernels."""

    chips: tuple[str, ...]
    trees: Trees


def read_features(
    name: str,
    sizes: Floats,
    seconds: Floats,
    device: DeviceType,
    rate: float,
    chips: Sequence[str],
) -> Floats:
    """[kernel, feature] of kernels of one class with their estimated seconds."""
    units = max(device.num_units, 1)
    columns = [*numpy.log2(numpy.maximum(sizes, 0.5)).T, numpy.log(seconds)]
    if not name.startswith("attention"):
        batch, rows, width, inner = sizes[:, :4].T
        for tall, wide in TILES[[0, 3, 7, 9]]:
            tiles = batch * numpy.ceil(rows / tall) * numpy.ceil(width / wide)
            columns += [tiles / units / numpy.ceil(tiles / units), numpy.log(tiles / units)]
        moved = batch * (rows * inner + inner * width + rows * width)
        flops = 2 * batch * rows * width * inner
        columns += [numpy.log(flops / moved), numpy.log(moved)]
        columns += [rows % 128, width % 128, width % 4, inner % 4, rows % 4, inner % 64, inner % 8]
    else:
        batch, heads, key_heads, queries, _, head, _, _ = sizes.T
        for block in (64.0, 128.0):
            blocks = batch * heads * numpy.ceil(queries / block)
            columns += [blocks / units / numpy.ceil(blocks / units), numpy.log(blocks / units)]
        columns += [heads / key_heads, numpy.log(batch * heads), numpy.log(batch * queries)]
        columns += [numpy.log(batch * heads * queries * head)]
        flops = 2 * batch * heads * queries**2 * head
    columns += [numpy.log(seconds * rate / flops)]
    columns += [numpy.full(len(sizes), float(device.residual == chip)) for chip in chips]
    return numpy.stack(columns, axis=1)


def correct_seconds(
    name: str, sizes: Floats, seconds: Floats, device: DeviceType, rate: float
) -> Floats:
    """Seconds with the residual of a class, where one was learned for the device."""
    known = _load_residuals().get(name) if device.residual is not None else None
    if known is None or device.residual not in known.chips:
        return seconds
    answer = known.trees.predict(read_features(name, sizes, seconds, device, rate, known.chips))
    corrected: Floats = seconds * numpy.exp(numpy.clip(answer, -MOST, MOST))
    return corrected


@functools.cache
def _load_residuals() -> dict[str, Residual]:
    path = importlib.resources.files("graphplan_profiles").joinpath("laws", "residual.json.gz")
    if not path.is_file():
        return {}
    file = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=ResidualFile)
    return {
        name: Residual(chips, _unpack_trees(file.arrays, name))
        for name, chips in file.chips.items()
    }


def _unpack_trees(arrays: dict[str, Array], name: str) -> Trees:
    """The trees of a class."""
    parts = {part: unpack_array(arrays, f"trees.{part} {name}", (None, None)) for part in PARTS}
    return Trees(**parts)
