"""Matrix products: waves of tiles over the units of a device.

    tiles   = batch * ceil(rows / tile rows) * ceil(columns / tile columns)
    waves   = ceil(tiles * splits / units)
    compute = waves * (inner / splits + prologue) * time of one step of a tile
    seconds = launch + |compute, bytes / (bandwidth * memory)| in the norm `sharp`

A step of a tile takes its FLOPs at `efficiency`, those of `least_tile` elements at least (its
latency), or the loading of its operands at `fill` bytes for each FLOP of the unit's peak, whichever
is longest: that is why small tiles reach less. Loading takes `odd` longer where rows of an operand
are no multiple of 4 elements. The library takes the best tile and may split `inner` when tiles are
fewer than units, for `split_us` and the traffic of partial sums. Long products lower the clock
(power): the time grows with its power `sag` beyond 0.1 ms. Operands that fit the cache `copies`
times over come at three times the bandwidth.

Two figures tell how sweeps were measured, and only tools read them: `call_us`, a call from an idle
queue; `hot`, the share of its speed that a card of 72 W (L4) keeps while products alone run for
hours, which no step of a model does.

It breaks for sizes that are not multiples of 8 in 16 bits (another kernel), and where a library's
heuristic picks a poor kernel: thin products with few columns take up to eight times as long.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy
from numpy.typing import NDArray

from graphplan.nouns.cluster import DeviceType

Floats = NDArray[numpy.float64]
TILES = numpy.array(
    [(256, 128), (128, 256), (256, 64), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64),
     (32, 128), (16, 128), (64, 32), (32, 64), (128, 32), (64, 16), (16, 64), (32, 32)], float,
)  # fmt: skip
SPLITS = numpy.array([1, 2, 4, 8, 16, 32], float)
SHORTEST_SPLIT = 64
"""Least inner size that one part of a split keeps."""
SAG_FROM_S = 1e-4
CACHE_SPEED = 3.0


def price_products(
    sizes: Floats,
    item_bytes: Floats,
    device: DeviceType,
    rate: float,
    figures: Mapping[str, float],
    *,
    moved_bytes: Floats | None = None,
    fill_rate: float | None = None,
) -> Floats:
    """Seconds of products [kernel, (batch, rows, columns, inner)] at a peak rate.

    `fill_rate` is the peak that `fill` was fitted to, where that is another dtype's.
    """
    batch, rows, columns, inner = sizes.T
    odd = (columns % 4 > 0) | (inner % 4 > 0)
    loaded_bytes = item_bytes * (rate / (fill_rate or rate)) * (1 + figures.get("odd", 0.0) * odd)
    compute = sag_time(compute_time(sizes, loaded_bytes, device, rate, figures), figures)
    if moved_bytes is None:
        moved_bytes = item_bytes * batch * (rows * inner + inner * columns + rows * columns)
    memory = memory_time(moved_bytes, device, figures)
    return join_times(compute, memory, figures) + launch_time(device, figures)


def memory_time(moved_bytes: Floats, device: DeviceType, figures: Mapping[str, float]) -> Floats:
    """Seconds to move bytes, those that may lie in the cache faster."""
    share = min(figures.get("memory", 1.0), 1.0)
    if device.cache_bytes and "copies" in figures:
        hit = 1 / (1 + (moved_bytes * figures["copies"] / device.cache_bytes) ** 2)
        moved_bytes = moved_bytes * (1 - hit * (1 - 1 / CACHE_SPEED))
    return moved_bytes / (device.bandwidth_bytes_per_s * share)


def join_times(compute: Floats, memory: Floats, figures: Mapping[str, float]) -> Floats:
    """The longer of two that overlap, with a smooth corner where `sharp` is given."""
    longer = numpy.maximum(compute, memory)
    if "sharp" not in figures:
        return longer
    sharp = figures["sharp"]
    shorter = numpy.minimum(compute, memory) / numpy.maximum(longer, 1e-30)
    joined: Floats = longer * (1 + shorter**sharp) ** (1 / sharp)
    return joined


def sag_time(compute: Floats, figures: Mapping[str, float]) -> Floats:
    """Seconds of arithmetic under the clock that power leaves."""
    longer = numpy.maximum(1.0, compute / SAG_FROM_S) ** figures.get("sag", 0.0)
    found: Floats = compute * longer
    return found


def launch_time(device: DeviceType, figures: Mapping[str, float]) -> float:
    """Seconds between two kernels on the device."""
    return figures["launch_us"] * 1e-6 if "launch_us" in figures else device.launch_s


def compute_time(
    sizes: Floats,
    item_bytes: Floats,
    device: DeviceType,
    rate: float,
    figures: Mapping[str, float],
    *,
    splits: Floats = SPLITS,
) -> Floats:
    """Seconds of the arithmetic under the best tile and split."""
    batch, rows, columns, inner = (each[:, None, None] for each in sizes.T)
    efficiency = min(figures.get("efficiency", 1.0), 1.0)
    if not device.num_units:
        plain: Floats = (2 * batch * rows * columns * inner / (rate * efficiency))[:, 0, 0]
        return plain
    tall, wide = TILES[None, :, 0, None], TILES[None, :, 1, None]
    splits = splits[None, None, :]
    unit_rate = rate / device.num_units
    loaded = item_bytes[:, None, None] * (numpy.minimum(tall, rows) + numpy.minimum(wide, columns))
    step = numpy.maximum(
        2 * numpy.maximum(tall * wide, figures.get("least_tile", 0.0)) / (unit_rate * efficiency),
        loaded / (unit_rate * figures["fill"]) if "fill" in figures else 0.0,
    )
    tiles = batch * numpy.ceil(rows / tall) * numpy.ceil(columns / wide)
    waves = numpy.ceil(tiles * splits / device.num_units)
    found = waves * (inner / splits + figures.get("prologue", 0.0)) * step
    partial = batch * rows * columns * 4 * splits / (2 * device.bandwidth_bytes_per_s)
    found = found + numpy.where(splits > 1, figures.get("split_us", 0.0) * 1e-6 + partial, 0.0)
    allowed = (splits == 1) | (inner / splits >= SHORTEST_SPLIT)
    best: Floats = numpy.where(allowed, found, numpy.inf).min(axis=(1, 2))
    return best
