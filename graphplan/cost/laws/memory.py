"""Ops bound by memory: streams of bytes, and rows that are reduced.

A stream (elementwise ops, copies, embeddings, optimizers) takes bytes / (bandwidth * `memory`) and
a launch for every kernel; tensors that fit the cache `copies` times over were left there by the op
before. Rows (norms, softmax, cross-entropy) are read again when they outgrow
registers: `again` passes more for long rows, half of them at `long` columns. Rows whose length is
no multiple of 4 elements take `odd` longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphplan.cost.laws.gemm import CACHE_SPEED, Floats, launch_time
from graphplan.nouns.cluster import DeviceType


def price_streams(sizes: Floats, device: DeviceType, figures: Mapping[str, float]) -> Floats:
    """Seconds of [kernel, (bytes, launches)]."""
    num_bytes, launches = sizes.T
    rate = device.bandwidth_bytes_per_s * min(figures.get("memory", 1.0), 1.0)
    missed = _miss_cache(num_bytes, device, figures)
    found: Floats = missed / rate + launches * launch_time(device, figures)
    return found


def _miss_cache(num_bytes: Floats, device: DeviceType, figures: Mapping[str, float]) -> Floats:
    """Bytes, those that the op before has left in the cache counted as a third."""
    if not device.cache_bytes or "copies" not in figures:
        return num_bytes
    hit = 1 / (1 + (num_bytes * figures["copies"] / device.cache_bytes) ** 4)
    missed: Floats = num_bytes * (1 - hit * (1 - 1 / CACHE_SPEED))
    return missed


def price_rows(sizes: Floats, device: DeviceType, figures: Mapping[str, float]) -> Floats:
    """Seconds of [kernel, (item bytes, rows, columns, passes, launches)]."""
    item_bytes, rows, columns, passes, launches = sizes.T
    again = columns**2 / (columns**2 + figures.get("long", 4096.0) ** 2)
    moved = (passes + figures.get("again", 0.0) * again) * item_bytes * rows * columns
    moved = moved * (1 + figures.get("odd", 0.0) * (columns % 4 > 0))
    rate = device.bandwidth_bytes_per_s * min(figures.get("memory", 1.0), 1.0)
    found: Floats = _miss_cache(moved, device, figures) / rate + launches * launch_time(
        device, figures
    )
    return found
