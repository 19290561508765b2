"""What theory says of delays: Randomized PipeDream (arXiv 2606.03498) and chains of S stages.

The mean squared gradient over K block updates of step size lr, with S stages, smoothness L, second
moment of the gradient G^2, largest delay delta and f0 - f* to descend, is at most

    2 S (f0 - f*) / (lr K)  +  lr S L G^2  +  lr^2 L^2 delta^2 G^2
       descent                  noise           staleness

It is proved for a stage that is drawn at random in every step, with reads at most delta old;
PipeDream itself takes the stages in turn. The bound is loose: use it to compare, not to predict.
"""

from __future__ import annotations

import math

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun


class Setting(Noun, frozen=True, kw_only=True):
    """The constants of bound and limits; the defaults make its terms comparable between graphs."""

    descent: float = 1.0
    """f0 - f*."""
    curvature: float = 1.0
    """L."""
    gradient: float = 1.0
    """G."""
    num_steps: int = 10_000
    """K, in block updates."""
    momentum: float = 0.0
    """Of the stable learning rates; the bound is proved for plain SGD."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InvalidOption(
                f"A momentum of {self.momentum:g} is not between 0 and 1.",
                remedy="Give one such as 0.9.",
            )
        constants = (self.descent, self.curvature, self.gradient, self.num_steps)
        if not all(0 < each < math.inf for each in constants):
            raise InvalidOption(
                "The constants of the bound must be positive and finite.",
                remedy="Leave them at their defaults, or give measured ones.",
            )


class BoundTerms(Noun, frozen=True, kw_only=True):
    """The three terms of the bound at one learning rate."""

    rate: float
    descent: float
    noise: float
    staleness: float

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.descent + self.noise + self.staleness


def bound_terms(
    num_stages: int, delay: int, setting: Setting, *, rate: float | None = None
) -> BoundTerms:
    """The terms at `rate`, or at the rate that makes the bound smallest."""
    descent, noise, staleness = _coefficients(num_stages, delay, setting)
    at = rate if rate is not None else _tune_rate(descent, noise, staleness)
    return BoundTerms(
        rate=at, descent=descent / at, noise=noise * at, staleness=staleness * at * at
    )


def _coefficients(num_stages: int, delay: int, setting: Setting) -> tuple[float, float, float]:
    """a, b, c of a / lr + b lr + c lr^2."""
    moment = setting.gradient**2
    return (
        2 * num_stages * setting.descent / setting.num_steps,
        num_stages * setting.curvature * moment,
        (setting.curvature * delay) ** 2 * moment,
    )


def _tune_rate(descent: float, noise: float, staleness: float) -> float:
    """Where the derivative -a / lr^2 + b + 2 c lr, which only rises, is zero; by bisection."""
    low, high = 0.0, math.sqrt(descent / noise)  # without the third term
    for _ in range(200):
        middle = (low + high) / 2
        if middle * middle * (noise + 2 * staleness * middle) > descent:
            high = middle
        else:
            low = middle
    return high


def chain_delay(num_stages: int) -> int:
    """floor(S^2 - S/2): the largest delay of a chain."""
    return (2 * num_stages * num_stages - num_stages) // 2


def graph_delay(num_stages: int, depth: int) -> float:
    """n D - n/2: about the largest delay of a graph whose longest path has D stages."""
    return num_stages * depth - num_stages / 2
