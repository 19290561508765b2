"""Layers that an exported plan is trained with, where the runtime wants modules of its own kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WORDS, LENGTH, WIDTH = 32, 4, 16


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


def draw_batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets."""
    rng = torch.Generator().manual_seed(seed)
    made: Any = [torch.randint(0, WORDS, (size, LENGTH), generator=rng) for _ in range(2)]
    return made[0], made[1]


def measure_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy."""
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())
