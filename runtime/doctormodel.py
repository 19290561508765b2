"""The model that `graphplan doctor` trains: two transformer layers' worth of usual ops, and a head.

It makes a table of positions in its forward, draws no numbers, and takes a second on one core.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, WORDS, VOCABULARY, HEADS = 256, 64, 1000, 4


class Layer(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.gather = nn.Linear(WIDTH, WIDTH)
        self.before_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        given = self.project(self.before_attention(x))
        q, k, v = given.unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.gather(mixed.transpose(1, 2).flatten(2))
        fed: torch.Tensor = x + self.feed(self.before_feed(x))
        return fed


class Words(nn.Module):
    """Predicts the words that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(2)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The loss of a batch of texts."""
        places = self.places(torch.arange(words.shape[1], device=words.device))
        scores = self.head(self.layers(self.words(words) + places))
        return functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def build() -> nn.Module:
    """The model."""
    return Words()


def inputs(batch_size: int) -> tuple[torch.Tensor]:
    """Random texts."""
    return (torch.randint(0, VOCABULARY, (batch_size, WORDS)),)
