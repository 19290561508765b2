"""CANDLE-Uno: drug response from several feature groups, one tower for each.

As in GraphPipe's evaluation (arXiv 2406.17145): 7 branches of 4 x 4096, concatenated into a
residual top.

    graphplan search examples/candle_uno.py --gpus 8
    graphplan trace examples/candle_uno.py --set branches=3 --set width=64
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 1024
"""Numbers in one feature group."""


class Tower(nn.Module):
    """Four dense layers with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (FEATURES, width, width, width, width)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(F.relu(layer(x)))
        return x


class Uno(nn.Module):
    """A tower for each feature group; residual layers join them into one response."""

    def __init__(self, branches: int, width: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(Tower(width) for _ in range(branches))
        self.join = nn.Linear(branches * width, width)
        self.residual = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.response = nn.Linear(width, 1)

    def forward(self, groups: list[Tensor]) -> Tensor:
        towers = [tower(x) for tower, x in zip(self.towers, groups, strict=True)]
        x = F.relu(self.join(torch.cat(towers, dim=-1)))
        for layer in self.residual:
            x = x + F.relu(layer(x))
        return self.response(x).squeeze(-1)


def build(branches: int = 7, width: int = 4096) -> nn.Module:
    return Uno(branches, width)


def inputs(batch_size: int, branches: int = 7) -> dict[str, Any]:
    return {
        "groups": [torch.randn(batch_size, FEATURES) for _ in range(branches)],
        "growth": torch.randn(batch_size),
    }


def loss(output: Tensor, batch: dict[str, Any]) -> Tensor:
    return F.mse_loss(output, batch["growth"])


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def data(batch_size: int, branches: int = 7) -> Iterator[dict[str, Any]]:
    while True:
        yield inputs(batch_size, branches)
