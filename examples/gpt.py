"""GPT: a decoder-only language model with tied embeddings, GPT-2 medium by default.

graphplan search examples/gpt.py --gpus 4
graphplan trace examples/gpt.py --set layers=2 --set hidden=64 --set heads=4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    """Causal attention and a feed-forward part, both residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.attention_norm(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.feed_forward_norm(x)))))

    def attend(self, x: Tensor) -> Tensor:
        split = (3, self.heads, x.shape[-1] // self.heads)
        q, k, v = self.qkv(x).unflatten(-1, split).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(-2))


class GPT(nn.Module):
    """Tokens in, next-token scores out; the head shares its weight with the embedding."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 50257,
    context: int = 1024,
) -> nn.Module:
    return GPT(layers, hidden, heads, vocabulary, context)


def inputs(batch_size: int, vocabulary: int = 50257, context: int = 1024) -> dict[str, Tensor]:
    text = torch.randint(0, vocabulary, (batch_size, context + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["targets"].flatten())


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)


def data(
    batch_size: int, vocabulary: int = 50257, context: int = 1024
) -> Iterator[dict[str, Tensor]]:
    while True:
        yield inputs(batch_size, vocabulary, context)
