"""MMT: a multi-modal transformer, one tower of layers for each modality, joined at the end.

The evaluation model of GraphPipe (arXiv 2406.17145): 4 branches x 8 layers, sequence 256,
hidden 1024, 16 heads, feed-forward 4096.

    graphplan search examples/mmt.py --gpus 8
    graphplan trace examples/mmt.py --set branches=2 --set layers=4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        split = (3, self.heads, x.shape[-1] // self.heads)
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, split).unbind(-3)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        x = x + self.projection(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class MultiModalTransformer(nn.Module):
    """One tower for each modality; their pooled outputs are concatenated and classified."""

    def __init__(self, branches: int, layers: int, hidden: int, heads: int, classes: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(Layer(hidden, heads) for _ in range(layers))) for _ in range(branches)
        )
        self.head = nn.Linear(branches * hidden, classes)

    def forward(self, modalities: list[Tensor]) -> Tensor:
        towers = zip(self.towers, modalities, strict=True)
        return self.head(torch.cat([tower(x).mean(1) for tower, x in towers], dim=-1))


def build(branches: int = 4, layers: int = 8, hidden: int = 1024, heads: int = 16) -> nn.Module:
    return MultiModalTransformer(branches, layers, hidden, heads, classes=1000)


def inputs(
    batch_size: int, branches: int = 4, sequence: int = 256, hidden: int = 1024
) -> dict[str, Any]:
    return {
        "modalities": [torch.randn(batch_size, sequence, hidden) for _ in range(branches)],
        "labels": torch.randint(0, 1000, (batch_size,)),
    }


def loss(output: Tensor, batch: dict[str, Any]) -> Tensor:
    return F.cross_entropy(output, batch["labels"])


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def data(
    batch_size: int, branches: int = 4, sequence: int = 256, hidden: int = 1024
) -> Iterator[dict[str, Any]]:
    while True:
        yield inputs(batch_size, branches, sequence, hidden)
