"""Fused attention: blocks of queries over the units of a device (FlashAttention, arXiv 2307.08691).

A block of 128 or 64 queries reads the keys up to its diagonal, or all where nothing is masked, in
steps at `efficiency`, which falls as (head / 128) ** `narrow` for narrow heads, ** `wide` up to 256
and ** `widest` beyond. A block costs `start_us` and `prologue` keys besides; blocks spread over the
units with a `tail` of a block at the end, and take at least the longest block. Bytes and launch are
those of gemm.py. The backward has 2.5 times the FLOPs at `backward` of the efficiency.

It was fitted to inference kernels in 16 bits that also write a cache of keys and values; `backward`
comes from published figures. 32-bit attention uses a device's vector rate and the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from graphplan.cost.laws.gemm import SAG_FROM_S, Floats, join_times, launch_time, memory_time
from graphplan.nouns.cluster import DeviceType

BLOCKS = ((128.0, 1.0), (64.0, 0.85))
"""Queries of a block, and the share of the efficiency that it reaches."""
FULL_HEAD, WIDE_HEAD = 128.0, 256.0


def price_attentions(
    sizes: Floats,
    item_bytes: Floats,
    device: DeviceType,
    rate: float,
    figures: Mapping[str, float],
) -> Floats:
    """Seconds of [kernel, (batch, heads, key heads, queries, keys, head, causal, backward)]."""
    batch, heads, key_heads, queries, keys, head, _, backward = sizes.T
    if device.num_units:
        compute = numpy.minimum.reduce(
            [_block_time(sizes, device, rate, figures, *block) for block in BLOCKS]
        )
        compute = compute * numpy.maximum(1.0, compute / SAG_FROM_S) ** figures.get("sag", 0.0)
    else:
        compute = _count_flops(sizes) / (rate * _efficiency(sizes, figures))
    tensors = numpy.where(backward > 0, 2.0, 1.0)
    moved = tensors * item_bytes * batch * head * (2 * heads * queries + 2 * key_heads * keys)
    if figures.get("cached_keys"):
        moved = moved + item_bytes * batch * head * 2 * key_heads * keys
    memory = memory_time(moved, device, figures)
    return join_times(compute, memory, figures) + launch_time(device, figures)


def _efficiency(sizes: Floats, figures: Mapping[str, float]) -> Floats:
    head, backward = sizes[:, 5], sizes[:, 7]
    shape = numpy.where(
        head < FULL_HEAD,
        (head / FULL_HEAD) ** figures.get("narrow", 0.0),
        (numpy.minimum(head, WIDE_HEAD) / FULL_HEAD) ** figures.get("wide", 0.0)
        * (numpy.maximum(head, WIDE_HEAD) / WIDE_HEAD) ** figures.get("widest", 0.0),
    )
    half = numpy.where(backward > 0, figures.get("backward", 1.0), 1.0)
    found: Floats = numpy.minimum(figures.get("efficiency", 1.0) * shape, 1.0) * half
    return found


def _count_flops(sizes: Floats) -> Floats:
    batch, heads, _, queries, keys, head, causal, backward = sizes.T
    square = numpy.minimum(queries, keys)
    seen = numpy.where(
        causal > 0, square * (square + 1) / 2 + (queries - square) * keys, queries * keys
    )
    found: Floats = numpy.where(backward > 0, 10.0, 4.0) * batch * heads * seen * head
    return found


def _block_time(
    sizes: Floats,
    device: DeviceType,
    rate: float,
    figures: Mapping[str, float],
    block: float,
    share: float,
) -> Floats:
    """Seconds of the arithmetic in blocks of so many queries."""
    batch, heads, _, queries, keys, head, causal, backward = sizes.T
    speed = rate / device.num_units * _efficiency(sizes, figures) * share
    count = numpy.ceil(queries / block)
    whole = numpy.ceil(keys / block) * block
    mean = numpy.where(causal > 0, numpy.minimum((count + 1) / 2 * block, whole), whole)
    work = numpy.where(backward > 0, 10.0, 4.0) * block * head / speed
    prologue, start = figures.get("prologue", 0.0), figures.get("start_us", 0.0) * 1e-6
    longest = work * (whole + prologue) + start
    typical = work * (mean + prologue) + start
    waves = batch * heads * count / device.num_units
    tail = numpy.where(waves > 1, figures.get("tail", 0.0), 0.0)
    found: Floats = numpy.maximum(longest, typical * (waves + tail))
    return found
