"""Largest stable learning rates on a quadratic of curvature L, by policy.

A stage whose gradient reads its weights `lag` updates late and extrapolates them by `distance`
follows, with x = lr L and heavy-ball momentum b,

    W(t+1) = W(t) + b [W(t) - W(t-1)] - x [(1 + distance) W(t-lag) - distance W(t-lag-1)].

It is stable up to the smallest x > 0 at which a root z = exp(i a) of its characteristic polynomial
lies on the unit circle. Without momentum and extrapolation that is x = 2 sin(pi / (2 (2 lag + 1))).
The model has one weight; other stages with other delays lower the limit.
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
    """2 sin(pi / (2 (2 lag + 1))): the limit of lr L of plain SGD without extrapolation."""
    return 2 * math.sin(math.pi / (2 * (2 * lag + 1)))


@cache
def predicted_limit(lag: int, distance: int, momentum: float = 0.0) -> float:
    """The limit of lr L with weights read `lag` late and extrapolated by `distance`."""

    def crossing(angle: float) -> complex:
        """x as a complex number for which exp(i angle) is a root; a real one is a crossing."""
        z = cmath.exp(1j * angle)
        return (1 - z) * (1 - momentum / z) * z**lag / (1 + distance - distance / z)

    count = ANGLES_PER_LAG * (lag + 2)
    angles = [math.pi * (i + 0.5) / count for i in range(count)]
    at_minus_one = crossing(math.pi).real
    limits = [at_minus_one] if at_minus_one > 0 else []
    for low, high in pairwise(angles):
        rising = crossing(low).imag < 0
        if rising == (crossing(high).imag < 0):
            continue
        for _ in range(60):
            middle = (low + high) / 2
            if (crossing(middle).imag < 0) == rising:
                low = middle
            else:
                high = middle
        if crossing(low).real > 1e-12:
            limits.append(crossing(low).real)
    return min(limits)


def policy_limit(policy: WeightPolicy, *, momentum: float = 0.0) -> float:
    """The limit of lr L of the stage that tolerates least."""
    stages = range(len(policy.warmups))
    return min(stage_limit(policy, stage, momentum=momentum) for stage in stages)


def stage_limit(policy: WeightPolicy, stage: int, *, momentum: float = 0.0) -> float:
    """The limit of lr L of one stage alone."""
    if policy.is_synchronous:
        return predicted_limit(0, 0, momentum)
    if policy.name == "2bw":
        return predicted_limit(1, 0, momentum)
    warmup = max(policy.warmups) if policy.name == "vertical-sync" else policy.warmups[stage]
    lag = -(-warmup // policy.accumulate)
    if policy.name in ("predict", "spectrain2"):
        return predicted_limit(lag, lag, momentum)
    if policy.name == "spectrain1":
        return predicted_limit(lag, lag + half_depth(policy, stage), momentum)
    return predicted_limit(lag, 0, momentum)
