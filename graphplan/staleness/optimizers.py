"""Optimizers for replays: plain arithmetic, so that fractions, floats, arrays and tensors serve.

`direction` is the step that an optimizer would take again, divided by the learning rate: the
momentum buffer, or mhat / (sqrt(vhat) + eps). Decoupled weight decay is no part of it. At a
constant learning rate and without decay it is the last displacement (PipeOptim, arXiv 2312.00839).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Number = Any
"""A Fraction, a float, a numpy array or a tensor."""


class Optimizer(Protocol):
    """A rule that turns weights and their gradient into new weights and a new state."""

    @property
    def rate(self) -> Number:
        """The learning rate."""

    def start_state(self) -> Any:
        """The state before the first step."""

    def take_step(self, weights: Number, gradient: Number, state: Any) -> tuple[Number, Any]:
        """Weights and state after one step; the arguments stay as they are."""

    def find_direction(self, state: Any) -> Number | None:
        """The last step divided by minus the learning rate; None before the first step."""


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """SGD with heavy-ball momentum and coupled weight decay, as torch.optim.SGD."""

    rate: Number
    momentum: Number = 0
    weight_decay: Number = 0

    def start_state(self) -> Number | None:
        """No buffer yet."""
        return None

    def take_step(
        self, weights: Number, gradient: Number, state: Number | None
    ) -> tuple[Number, Number]:
        """buffer = momentum * buffer + gradient; weights -= rate * buffer."""
        if self.weight_decay:
            gradient = gradient + self.weight_decay * weights
        buffer = gradient if state is None else self.momentum * state + gradient
        return weights - self.rate * buffer, buffer

    def find_direction(self, state: Number | None) -> Number | None:
        """The momentum buffer."""
        return state


class Moments(NamedTuple):
    """State of Adam after `steps` steps."""

    steps: int
    first: Number
    second: Number


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; with `weight_decay` the decoupled decay of AdamW."""

    rate: Number
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def start_state(self) -> Moments | None:
        """No moments yet."""
        return None

    def take_step(
        self, weights: Number, gradient: Number, state: Moments | None
    ) -> tuple[Number, Moments]:
        """Decay, then one step along the corrected moments."""
        one, two = self.betas
        steps, first, second = state or Moments(0, 0 * gradient, 0 * gradient)
        moments = Moments(
            steps + 1,
            one * first + (1 - one) * gradient,
            two * second + (1 - two) * gradient * gradient,
        )
        if self.weight_decay:
            weights = weights - self.rate * self.weight_decay * weights
        return weights - self.rate * self.find_direction(moments), moments

    def find_direction(self, state: Moments | None) -> Number | None:
        """mhat / (sqrt(vhat) + eps)."""
        if state is None:
            return None
        corrected = state.second / (1 - self.betas[1] ** state.steps)
        return state.first / (1 - self.betas[0] ** state.steps) / (corrected**0.5 + self.epsilon)
