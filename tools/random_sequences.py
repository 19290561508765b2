"""Random models of sequences: attention, recurrence, mixers, large vocabularies."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.random_parts import Made, activate, classify, pick_width


class TransformerLayer(nn.Module):
    """Attention (fused or written out) and a feed-forward layer (plain or gated)."""

    def __init__(self, source: random.Random, hidden: int) -> None:
        super().__init__()
        self.heads = source.choice([heads for heads in (2, 4, 8) if hidden % (heads * 8) == 0])
        self.fused, self.joint = source.random() < 0.6, source.random() < 0.5
        self.gated, self.causal = source.random() < 0.3, source.random() < 0.5
        self.dropout = source.choice((0.0, 0.0, 0.1))
        self.attention_dropout, self.masked = source.choice((0.0, 0.0, 0.1)), source.random() < 0.4
        norm = source.choice((nn.LayerNorm, nn.LayerNorm, nn.RMSNorm))
        bias = source.random() < 0.7
        self.first, self.second = norm(hidden), norm(hidden)
        wide = source.choice((2, 3, 4)) * hidden
        self.qkv = nn.ModuleList(
            [nn.Linear(hidden, 3 * hidden, bias=bias)]
            if self.joint
            else [nn.Linear(hidden, hidden, bias=bias) for _ in range(3)]
        )
        self.out = nn.Linear(hidden, hidden, bias=bias)
        self.up = nn.Linear(hidden, wide, bias=bias)
        self.gate = nn.Linear(hidden, wide, bias=bias) if self.gated else None
        self.down = nn.Linear(wide, hidden, bias=bias)
        self.act = source.choice(("gelu", "relu", "silu"))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.first(x)))
        y = self.second(x)
        wide = activate(self.act, self.up(y))
        if self.gate is not None:
            wide = wide * self.gate(y)
        z = self.down(wide)
        return x + (functional.dropout(z, self.dropout) if self.dropout else z)

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.qkv[0](x).chunk(3, -1) if self.joint else [layer(x) for layer in self.qkv]
        shape = (self.heads, x.shape[-1] // self.heads)
        q, k, v = (part.unflatten(-1, shape).transpose(1, 2) for part in parts)
        if self.fused:
            mask = torch.zeros(x.shape[1], x.shape[1]) if self.masked else None
            mixed = functional.scaled_dot_product_attention(
                q, k, v, mask, self.attention_dropout, is_causal=self.causal and not self.masked
            )
        else:
            scores = q @ k.transpose(-2, -1) / shape[1] ** 0.5
            shares = scores.softmax(-1)
            if self.attention_dropout:
                shares = functional.dropout(shares, self.attention_dropout)
            mixed = shares @ v
        return mixed.transpose(1, 2).flatten(-2)


class Transformer(nn.Module):
    """Embedded words through a few layers to a vocabulary."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        hidden = pick_width(source, 64, 512, 32)
        self.words = source.choice((16, 32, 50, 64, 96, 128, 197, 256, 512))
        large = (20000, 50000) if self.words < 64 else ()
        self.vocabulary = source.choice((200, 1000, 2000, 5000, *large))
        self.tokens = nn.Embedding(self.vocabulary, hidden)
        self.places = nn.Embedding(self.words, hidden)
        self.layers = nn.ModuleList(TransformerLayer(source, hidden) for _ in range(2))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, self.vocabulary, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def make_transformer(source: random.Random) -> Made:
    """A random language model."""
    model = Transformer(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        size = (batch_size, model.words)
        return {
            "words": torch.randint(0, model.vocabulary, size),
            "labels": torch.randint(0, model.vocabulary, size),
        }

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())

    return model, inputs, loss


class Recurrent(nn.Module):
    """Embedded words through an LSTM or a GRU."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        hidden = pick_width(source, 32, 256, 16)
        self.words, self.vocabulary = source.choice((10, 20, 40)), 1000
        self.tokens = nn.Embedding(self.vocabulary, hidden)
        kind = source.choice((nn.LSTM, nn.GRU))
        self.body = kind(hidden, hidden, source.choice((1, 2)), batch_first=True)
        self.head = nn.Linear(hidden, self.vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        seen, _ = self.body(self.tokens(words))
        scores: Tensor = self.head(seen)
        return scores


def make_recurrent(source: random.Random) -> Made:
    """A random recurrent language model."""
    model = Recurrent(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        words = torch.randint(0, model.vocabulary, (batch_size, model.words))
        return {"words": words, "labels": words}

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())

    return model, inputs, loss


class Mixer(nn.Module):
    """A random DAG of elementwise, reducing and copying ops over [batch, rows, columns]."""

    OPS = (
        "add", "mul", "sub", "div", "cat", "relu", "exp", "pow", "rsqrt", "softmax", "mean", "sum",
        "neg", "where", "square", "transpose", "log_softmax", "matmul", "linear", "clone", "scale",
        "masked_fill", "stack", "dropout", "sigmoid", "abs",
    )  # fmt: skip

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.rows, self.columns = pick_width(source, 8, 192), pick_width(source, 16, 640)
        self.linear = nn.Linear(self.columns, self.columns)
        self.steps = [(source.choice(self.OPS), source.randint(0, 99)) for _ in range(22)]

    def forward(self, x: Tensor) -> Tensor:
        values = [self.linear(x), x * 0.5]
        for name, place in self.steps:
            first, second = values[-1], values[place % len(values)]
            values.append(self._mix(name, first, second))
        return torch.stack([value.mean() for value in values[-6:]]).sum()

    def _mix(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        simple: dict[str, Callable[[], Tensor]] = {
            "add": lambda: a + b, "mul": lambda: a * b, "sub": lambda: a - b,
            "div": lambda: a / (b.abs() + 1), "relu": lambda: a.relu(), "neg": lambda: -a,
            "exp": lambda: (-a.abs()).exp(), "pow": lambda: a.pow(2), "square": lambda: a.square(),
            "rsqrt": lambda: (a.abs() + 1).rsqrt(), "softmax": lambda: a.softmax(-1),
            "log_softmax": lambda: a.log_softmax(-1), "linear": lambda: self.linear(a),
            "mean": lambda: a - a.mean(-1, keepdim=True), "clone": lambda: a.clone(),
            "sum": lambda: a + b.sum(1, keepdim=True), "scale": lambda: a * 0.125,
            "where": lambda: torch.where(a > 0, a, b), "sigmoid": lambda: a.sigmoid(),
            "masked_fill": lambda: a.masked_fill(b < 0, 0.0), "abs": lambda: a.abs(),
            "dropout": lambda: functional.dropout(a, 0.1),
            "stack": lambda: torch.stack([a, b], 1).mean(1),
            "cat": lambda: torch.cat([a, b], -1).view(*a.shape[:2], 2, self.columns).mean(2),
            "transpose": lambda: (a.transpose(1, 2) * 1.5).transpose(1, 2).contiguous(),
            "matmul": lambda: (a @ b.transpose(1, 2)).softmax(-1) @ b,
        }  # fmt: skip
        return simple[name]()


def make_mixer(source: random.Random) -> Made:
    """A random DAG of small ops."""
    model = Mixer(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {"x": torch.randn(batch_size, model.rows, model.columns)}

    return model, inputs, lambda output, batch: output


class Words(nn.Module):
    """A large vocabulary at both ends."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.rows, columns = pick_width(source, 15000, 60000), pick_width(source, 64, 256, 16)
        self.words, classes = source.choice((8, 16, 32, 77)), source.choice((100, 10000, 30000))
        self.tokens, self.norm = nn.Embedding(self.rows, columns), nn.LayerNorm(columns)
        self.head = nn.Linear(columns, classes, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.tokens(words)).mean(1))
        return scores


def make_words(source: random.Random) -> Made:
    """A classifier of words from a large vocabulary."""
    model = Words(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "words": torch.randint(0, model.rows, (batch_size, model.words)),
            "labels": torch.randint(0, model.head.out_features, (batch_size,)),
        }

    return model, inputs, classify
