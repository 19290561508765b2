"""Largest stable learning rates on a quadratic of curvature L, by policy.

A stage whose gradient reads its weights `lag` updates late and extrapolates them by `distance`
follows, with x = lr L,

    W(t+1) = W(t) - x [(1 + distance) W(t-lag) - distance W(t-lag-1)].

It is stable up to the smallest x > 0 at which a root z = exp(i a) of its characteristic polynomial
lies on the unit circle. Without extrapolation that is x = 2 sin(pi / (2 (2 lag + 1))). The model
has one weight and plain SGD: momentum and other stages lower the limit.
"""

from __future__ import annotations

import cmath
import math
from functools import cache
from itertools import pairwise

from graphplan.nouns.policy import WeightPolicy
from graphplan.staleness.versions import half_depth

ANGLES_PER_LAG = 40
"""The imaginary part that is searched for zeros has about one sign change for each lag."""


def delayed_limit(lag: int) -> float:
    """2 sin(pi / (2 (2 lag + 1))): the limit of lr L without extrapolation."""
    return 2 * math.sin(math.pi / (2 * (2 * lag + 1)))


@cache
def predicted_limit(lag: int, distance: int) -> float:
    """The limit of lr L with weights read `lag` late and extrapolated by `distance`."""
    count = ANGLES_PER_LAG * (lag + 2)
    angles = [math.pi * (i + 0.5) / count for i in range(count)]
    at_minus_one = _crossing(math.pi, lag, distance).real
    limits = [at_minus_one] if at_minus_one > 0 else []
    for low, high in pairwise(angles):
        ends = _crossing(low, lag, distance).imag, _crossing(high, lag, distance).imag
        if ends[0] * ends[1] <= 0:
            found = _crossing(_bisect(low, high, lag, distance), lag, distance).real
            if found > 1e-9:
                limits.append(found)
    return min(limits)


def _crossing(angle: float, lag: int, distance: int) -> complex:
    """x as a complex number for which exp(i angle) is a root; a real one is a crossing."""
    z = cmath.exp(1j * angle)
    return z ** (lag + 1) * (1 - z) / (1 + distance - distance / z) / z


def _bisect(low: float, high: float, lag: int, distance: int) -> float:
    sign = _crossing(low, lag, distance).imag > 0
    for _ in range(60):
        middle = (low + high) / 2
        if (_crossing(middle, lag, distance).imag > 0) == sign:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def policy_limit(policy: WeightPolicy) -> float:
    """The limit of lr L of the stage that tolerates least."""
    return min(stage_limit(policy, stage) for stage in range(len(policy.warmups)))


def stage_limit(policy: WeightPolicy, stage: int) -> float:
    """The limit of lr L of one stage alone."""
    if policy.is_synchronous:
        return delayed_limit(0)
    if policy.name == "2bw":
        return delayed_limit(1)
    warmup = max(policy.warmups) if policy.name == "vertical-sync" else policy.warmups[stage]
    lag = -(-warmup // policy.accumulate)
    if policy.name in ("predict", "spectrain2"):
        return predicted_limit(lag, lag)
    if policy.name == "spectrain1":
        return predicted_limit(lag, lag + half_depth(policy, stage))
    return delayed_limit(lag)
