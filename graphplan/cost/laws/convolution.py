"""Convolutions: the faster of a plain product and Winograd's, as the library chooses.

The plain way is a product of positions x filter taps x channels that is never split along its sum,
unless the sum is over the positions (gradients of filters).
Filters of 3 x 3 at stride 1 may go Winograd's way (Lavin and Gray 2016): squares of 4 x 4 results
are 4 x 16 products of input by output channels instead of 16 x 9, after the filters were rewritten.

    plain    = waves of tiles over [positions, channels], taps x input channels long
    winograd = waves of tiles over 16 times [squares of 2 x 2, channels], input channels long,
               at `winograd` of the peak, `winograd_fill`, `winograd_prologue`
               + `transform` passes over the filters + `winograd_us`

Measured were forwards in 32 bits of 3 x 3 filters at stride 1 alone. Nothing is priced above the
peak of the plain FLOPs, although Winograd's way reaches 1.6 times that for wide images.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from graphplan.cost.laws.gemm import (
    Floats,
    compute_time,
    join_times,
    launch_time,
    memory_time,
    sag_time,
)
from graphplan.nouns.cluster import DeviceType

WHOLE = numpy.array([1.0])
"""No library splits the sum of a convolution over its channels."""
WINOGRAD_TAPS = 9
FILTER_BYTES = 4 * (9 + 16)
"""A filter of 3 x 3 is read and written as one of 4 x 4."""


def price_convolutions(
    sizes: Floats, items: Floats, device: DeviceType, rate: float, figures: Mapping[str, float]
) -> Floats:
    """Seconds of [kernel, (groups, positions, channels, inner, taps, bytes, stride, padded)]."""
    groups, _, channels, inner, taps, moved, stride, padded = sizes.T
    odd = 1 + figures.get("odd", 0.0) * ((channels % 4 > 0) | (inner % 4 > 0))
    plain = sizes[:, :4], items * odd, device, rate, figures
    compute = compute_time(*plain, splits=WHOLE)
    if not padded.all():
        compute = numpy.where(padded > 0, compute, compute_time(*plain))
    if "winograd" in figures:
        squares = numpy.stack(
            [16 * groups, numpy.maximum(padded / 4, 1), channels, inner / taps], axis=1
        )
        turned = {
            "efficiency": figures["winograd"],
            "fill": figures["winograd_fill"],
            "prologue": figures["winograd_prologue"],
        }
        fewer = compute_time(squares, items * odd, device, rate, turned, splits=WHOLE)
        filters = FILTER_BYTES * groups * channels * inner / taps
        fewer = fewer + figures["transform"] * filters / device.bandwidth_bytes_per_s
        fewer = fewer + figures["winograd_us"] * 1e-6
        allowed = (taps == WINOGRAD_TAPS) & (stride > 0) & (padded > 0)
        compute = numpy.where(allowed, numpy.minimum(compute, fewer), compute)
    memory = memory_time(moved, device, figures)
    joined = join_times(sag_time(compute, figures), memory, figures)
    return joined + launch_time(device, figures)
