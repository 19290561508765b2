"""A model file whose weights outweigh everything else that a process holds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, NUM_LAYERS = 2048, 16
WEIGHT_BYTES = 4 * WIDTH * WIDTH * NUM_LAYERS
"""Training with Adam needs them four times."""


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)))


def inputs(batch_size: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch_size, WIDTH),)


def loss(output: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output, batch[0])


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)
