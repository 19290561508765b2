"""What the random models of the cost set share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu")

Inputs = Callable[[int], Any]
Loss = Callable[[Any, Any], Tensor]
Made = tuple[nn.Module, Inputs, Loss | None]


def pick_width(source: random.Random, low: int, high: int, step: int = 8) -> int:
    """A multiple of `step`, spread evenly over the orders of magnitude."""
    width = float(low * (high / low) ** source.random())
    return max(step, round(width / step) * step)


def activate(name: str, x: Tensor) -> Tensor:
    found: Tensor = torch.tanh(x) if name == "tanh" else getattr(functional, name)(x)
    return found


def classify(output: Tensor, batch: Any) -> Tensor:
    return functional.cross_entropy(output, batch["labels"])
