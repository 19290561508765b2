"""Random models of tables and towers: linear layers, embeddings, branches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.random_parts import ACTIVATIONS, Made, activate, classify, pick_width
from tools.random_sequences import TransformerLayer


class Mlp(nn.Module):
    """Linear layers with norms, activations, dropout and residual sums."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.width, depth = pick_width(source, 32, 1536), source.randint(3, 5)
        self.features = pick_width(source, 16, 1024)
        widths = [self.features, self.width]
        for _ in range(depth):
            same = source.random() < 0.5
            widths.append(widths[-1] if same else pick_width(source, 32, 1536))
        pairs = list(itertools.pairwise(widths))
        bias = source.random() < 0.8
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairs)
        norms: list[Callable[[int], nn.Module]] = [nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm]
        self.norms = nn.ModuleList(
            source.choice(norms)(b) if source.random() < 0.6 else nn.Identity() for _, b in pairs
        )
        self.acts = [source.choice(ACTIVATIONS) for _ in pairs]
        self.dropout = source.choice((0.0, 0.1))
        self.head = nn.Linear(widths[-1], source.choice((2, 10, 100, 1000)))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm, act in zip(self.layers, self.norms, self.acts, strict=True):
            y = activate(act, norm(layer(x)))
            if self.dropout:
                y = functional.dropout(y, self.dropout)
            x = x + y if y.shape == x.shape else y
        scores: Tensor = self.head(x)
        return scores


def make_mlp(source: random.Random) -> Made:
    """A random MLP."""
    model = Mlp(source)
    classes = model.head.out_features

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "x": torch.randn(batch_size, model.features),
            "labels": torch.randint(0, classes, (batch_size,)),
        }

    return model, inputs, classify


class Recommender(nn.Module):
    """Bags of embeddings and dense towers, concatenated."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.bags, self.bag = source.randint(1, 3), source.choice((5, 20, 50, 100))
        self.rows, columns = pick_width(source, 500, 60000), source.choice((16, 32, 64, 128))
        self.features, width = pick_width(source, 8, 64), pick_width(source, 64, 1024)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(self.rows, columns, mode=source.choice(("sum", "mean")))
            for _ in range(self.bags)
        )
        self.dense = nn.Sequential(
            nn.Linear(self.features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.top = nn.Sequential(
            nn.Linear(width + columns * self.bags, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, numbers: Tensor, rows: list[Tensor]) -> Tensor:
        sparse = [table(each) for table, each in zip(self.tables, rows, strict=True)]
        score: Tensor = self.top(torch.cat([self.dense(numbers), *sparse], -1)).squeeze(-1)
        return score


def make_recommender(source: random.Random) -> Made:
    """A random click model."""
    model = Recommender(source)

    def inputs(batch_size: int) -> dict[str, Any]:
        return {
            "numbers": torch.randn(batch_size, model.features),
            "rows": [
                torch.randint(0, model.rows, (batch_size, model.bag)) for _ in range(model.bags)
            ],
            "clicked": torch.randint(0, 2, (batch_size,)).float(),
        }

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.binary_cross_entropy_with_logits(output, batch["clicked"])

    return model, inputs, loss


class Towers(nn.Module):
    """Patches of an image and numbers, each through a tower, compared."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        hidden, self.patch = pick_width(source, 64, 320, 32), source.choice((8, 16, 32))
        self.size = self.patch * source.choice((4, 7))
        self.patches = nn.Conv2d(3, hidden, self.patch, self.patch)
        self.places = nn.Parameter(torch.zeros((self.size // self.patch) ** 2, hidden))
        self.layer = TransformerLayer(source, hidden)
        self.features = pick_width(source, 16, 512)
        self.other = nn.Sequential(
            nn.Linear(self.features, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden)
        )
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor, numbers: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        a = functional.normalize(self.layer(x).mean(1), dim=-1)
        b = functional.normalize(self.other(numbers), dim=-1)
        scores: Tensor = self.scale.exp() * a @ b.T
        return scores


def make_towers(source: random.Random) -> Made:
    """A random two-tower model."""
    model = Towers(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "images": torch.randn(batch_size, 3, model.size, model.size),
            "numbers": torch.randn(batch_size, model.features),
        }

    def loss(output: Tensor, batch: Any) -> Tensor:
        pairs = torch.arange(output.shape[0], device=output.device)
        return functional.cross_entropy(output, pairs) + functional.cross_entropy(output.T, pairs)

    return model, inputs, loss
