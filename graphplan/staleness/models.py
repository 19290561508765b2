"""Models for replays: what a stage computes, and two that are small enough for exact fractions.

sum       a stage adds its weight to the sum of its inputs; sources start from 0
product   a stage multiplies the sum of its inputs by its weight; sources start from 1

A sink's loss is (a - 1)^2 / 2 and the losses of several sinks add up. The backward of `sum` does
not use weights, that of `product` does: only there do policies differ that read other weights in B.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

Value = Any
"""What flows between stages: a number, an array or a tensor."""


class Model(Protocol):
    """A model cut into stages. `weights` is one value that an Optimizer can compute with."""

    def start_weights(self, stage: int) -> Value:
        """The weights of a stage before the first update."""

    def run_forward(
        self, stage: int, weights: Value, inputs: tuple[Value, ...], micro_batch: int
    ) -> tuple[Value, Any]:
        """Output, and what the backward needs. Inputs come in the order of the predecessors."""

    def run_backward(
        self, stage: int, weights: Value, saved: Any, gradient: Value | None
    ) -> tuple[tuple[Value, ...], Value]:
        """Gradients of the inputs and of the weights, for weights that may differ from F's.

        `gradient` is the sum over the readers of the output, None at a sink.
        """


@dataclass(frozen=True)
class SumModel:
    """a = sum of inputs + w_s; the target is 1."""

    start: Fraction = Fraction(0)

    def start_weights(self, stage: int) -> Fraction:
        """The same for every stage."""
        return self.start

    def run_forward(
        self, stage: int, weights: Value, inputs: tuple[Value, ...], micro_batch: int
    ) -> tuple[Value, Any]:
        """Add the weight."""
        output = sum(inputs, Fraction(0)) + weights
        return output, (len(inputs), output)

    def run_backward(
        self, stage: int, weights: Value, saved: Any, gradient: Value | None
    ) -> tuple[tuple[Value, ...], Value]:
        """Every input and the weight get the output's gradient."""
        count, output = saved
        given = output - 1 if gradient is None else gradient
        return (given,) * count, given


@dataclass(frozen=True)
class ProductModel:
    """a = (sum of inputs) * w_s; the target is 1."""

    start: Fraction = Fraction(1, 2)

    def start_weights(self, stage: int) -> Fraction:
        """The same for every stage."""
        return self.start

    def run_forward(
        self, stage: int, weights: Value, inputs: tuple[Value, ...], micro_batch: int
    ) -> tuple[Value, Any]:
        """Multiply by the weight."""
        total = sum(inputs, Fraction(0)) if inputs else Fraction(1)
        return total * weights, (len(inputs), total, total * weights)

    def run_backward(
        self, stage: int, weights: Value, saved: Any, gradient: Value | None
    ) -> tuple[tuple[Value, ...], Value]:
        """The input's gradient uses the backward's weights, the weight's the saved input."""
        count, total, output = saved
        given = output - 1 if gradient is None else gradient
        return (given * weights,) * count, given * total
