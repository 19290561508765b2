"""Novelty: which ops lie outside what a cost model was trained on, and why.

An op is *extrapolated* when its kind or dtype was never measured, when it is much smaller or larger
than every measured op of its kind, or when its device was not among the measured ones. Inside this
fence a prediction interpolates; outside it is a guess, and is reported as one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy

from graphplan.cost.features import DEVICE_COLUMNS, RANGED, Floats, GraphFeatures

MARGIN = math.log(4.0)
"""How far beyond the smallest and largest measured op of a kind still counts as inside."""
SAME_DEVICE = math.log(1.25)
"""Peak rates that differ by less are those of the same device."""


@dataclasses.dataclass(frozen=True)
class Fence:
    """What training has seen."""

    kinds: tuple[str, ...]
    low: Floats
    """[kind, ranged feature]"""
    high: Floats
    """[kind, ranged feature]"""
    dtypes: tuple[str, ...]
    devices: Floats
    """[device, rate]: logarithms of the peak rates."""


def build_fence(seen: Sequence[GraphFeatures]) -> Fence:
    """The fence around the features of the training data."""
    kinds = tuple(sorted({kind for features in seen for kind in features.kinds}))
    index = {kind: i for i, kind in enumerate(kinds)}
    low = numpy.full((len(kinds), len(RANGED)), numpy.inf)
    high = numpy.full((len(kinds), len(RANGED)), -numpy.inf)
    devices = []
    for features in seen:
        place = [index[kind] for kind in features.kinds]
        for values in features.values:
            numpy.minimum.at(low, place, values[:, RANGED])
            numpy.maximum.at(high, place, values[:, RANGED])
            devices.append(values[:, DEVICE_COLUMNS])
    return Fence(
        kinds=kinds,
        low=low,
        high=high,
        dtypes=tuple(sorted({dtype for features in seen for dtype in features.dtypes})),
        devices=numpy.unique(numpy.concatenate(devices), axis=0),
    )


def find_novelties(fence: Fence, features: GraphFeatures) -> tuple[str | None, ...]:
    """Why each op is extrapolated at one size or more; None for those that are not."""
    index = {kind: i for i, kind in enumerate(fence.kinds)}
    place = numpy.array([index.get(kind, 0) for kind in features.kinds], dtype=numpy.int64)
    ranged = features.values[:, :, RANGED]
    below = (fence.low[place] - ranged).max((0, 2), initial=0.0)
    above = (ranged - fence.high[place]).max((0, 2), initial=0.0)
    strange = _find_strange_device(fence, features)
    return tuple(
        strange or _judge_op(fence, kind, dtype, float(under), float(over))
        for kind, dtype, under, over in zip(
            features.kinds, features.dtypes, below, above, strict=True
        )
    )


def _judge_op(fence: Fence, kind: str, dtype: str, under: float, over: float) -> str | None:
    if kind not in fence.kinds:
        return f"{kind}: never measured"
    if dtype not in fence.dtypes:
        return f"{kind}: never measured in {dtype}"
    if max(under, over) <= MARGIN:
        return None
    factor = math.exp(max(under, over))
    return f"{kind}: {factor:,.0f}x {'larger' if over >= under else 'smaller'} than measured"


def _find_strange_device(fence: Fence, features: GraphFeatures) -> str | None:
    """Whether the peak rates are those of no device of the training data."""
    rates = numpy.unique(features.values[0][:, DEVICE_COLUMNS], axis=0)
    for own in rates:
        if not len(fence.devices) or numpy.abs(fence.devices - own).max(1).min() > SAME_DEVICE:
            return "the device: never measured"
    return None
