"""Models as Megatron-LM's own tests build them, with the loss: BERT and GPT."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

DROPOUT = 0.1


class Sizes(NamedTuple):
    """What tells one of its models from another."""

    layers: int
    hidden: int
    wide: int
    heads: int
    key_heads: int
    sequence: int
    words: int
    causal: bool


class Layer(nn.Module):
    """Attention and two products; scores are written out where nothing is causal (BERT)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, narrow = sizes.hidden, sizes.hidden * sizes.key_heads // sizes.heads
        self.head, self.causal = hidden // sizes.heads, sizes.causal
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.query, self.proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.key, self.value = nn.Linear(hidden, narrow), nn.Linear(hidden, narrow)
        self.up, self.down = nn.Linear(hidden, sizes.wide), nn.Linear(sizes.wide, hidden)

    def attend(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], -1, self.head)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.causal:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            scores = functional.softmax(q @ k.transpose(2, 3) / self.head**0.5, dim=-1)
            y = functional.dropout(scores, DROPOUT) @ v
        found: Tensor = self.proj(y.transpose(1, 2).reshape(x.shape))
        return found

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attend(self.norms[0](x)), DROPOUT)
        y = self.down(functional.gelu(self.up(self.norms[1](x))))
        return x + functional.dropout(y, DROPOUT)


class Model(nn.Module):
    """Words and learned places, layers, words again, cross-entropy."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.hidden)
        self.places = nn.Embedding(sizes.sequence, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.words, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = functional.dropout(self.words(tokens) + self.places(places), DROPOUT)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
