"""DLRM: a recommendation model with dense and sparse features.

As in GraphPipe's evaluation (arXiv 2406.17145): 7 dense branches of 4 x 4096, 7 sparse branches
(1M rows x 64, bags of 100), concatenated into a 4096-wide top.

    graphplan search examples/dlrm.py --gpus 8
    graphplan trace examples/dlrm.py --set branches=2 --set width=64 --set rows=1000
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 256
"""Numbers in one dense input."""
BAG = 100
"""Rows that one sparse input looks up."""


def build_mlp(*widths: int) -> nn.Sequential:
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))


class DLRM(nn.Module):
    """Dense towers and embedding bags side by side, then a common top."""

    def __init__(self, branches: int, width: int, rows: int, columns: int) -> None:
        super().__init__()
        towers = (build_mlp(FEATURES, width, width, width, width) for _ in range(branches))
        self.dense = nn.ModuleList(towers)
        self.sparse = nn.ModuleList(
            nn.EmbeddingBag(rows, columns, mode="sum") for _ in range(branches)
        )
        self.top = build_mlp(branches * (width + columns), width, width)
        self.click = nn.Linear(width, 1)

    def forward(self, numbers: list[Tensor], rows: list[Tensor]) -> Tensor:
        dense = [tower(x) for tower, x in zip(self.dense, numbers, strict=True)]
        sparse = [table(x) for table, x in zip(self.sparse, rows, strict=True)]
        return self.click(self.top(torch.cat(dense + sparse, dim=-1))).squeeze(-1)


def build(
    branches: int = 7, width: int = 4096, rows: int = 1_000_000, columns: int = 64
) -> nn.Module:
    return DLRM(branches, width, rows, columns)


def inputs(batch_size: int, branches: int = 7, rows: int = 1_000_000) -> dict[str, Any]:
    return {
        "numbers": [torch.randn(batch_size, FEATURES) for _ in range(branches)],
        "rows": [torch.randint(0, rows, (batch_size, BAG)) for _ in range(branches)],
        "clicked": torch.randint(0, 2, (batch_size,)).float(),
    }


def loss(output: Tensor, batch: dict[str, Any]) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, batch["clicked"])


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def data(batch_size: int, branches: int = 7, rows: int = 1_000_000) -> Iterator[dict[str, Any]]:
    while True:
        yield inputs(batch_size, branches, rows)
