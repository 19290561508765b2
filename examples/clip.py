"""CLIP: an image tower and a text tower, trained to agree on the pairs of a batch.

About the size of ViT-L/14 with its text model. The contrastive loss compares every image with every
text of the micro-batch.

    graphplan search examples/clip.py --gpus 8
    graphplan trace examples/clip.py --set layers=2 --set hidden=64 --set heads=4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE, PATCH, WORDS, VOCABULARY = 224, 14, 77, 49408


class Layer(nn.Module):
    """A pre-norm transformer layer, causal for text."""

    def __init__(self, hidden: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        split = (3, self.heads, x.shape[-1] // self.heads)
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, split).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.projection(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class ImageTower(nn.Module):
    """Patches of an image to one vector."""

    def __init__(self, layers: int, hidden: int, heads: int, shared: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.randn((IMAGE // PATCH) ** 2, hidden) * 0.02)
        self.layers = nn.Sequential(*(Layer(hidden, heads, causal=False) for _ in range(layers)))
        self.projection = nn.Linear(hidden, shared, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.projection(self.layers(x).mean(1))


class TextTower(nn.Module):
    """Tokens of a caption to one vector."""

    def __init__(self, layers: int, hidden: int, heads: int, shared: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Parameter(torch.randn(WORDS, hidden) * 0.02)
        self.layers = nn.Sequential(*(Layer(hidden, heads, causal=True) for _ in range(layers)))
        self.projection = nn.Linear(hidden, shared, bias=False)

    def forward(self, captions: Tensor) -> Tensor:
        x = self.layers(self.tokens(captions) + self.positions)
        return self.projection(x[:, -1])


class TwoTowers(nn.Module):
    """Similarity of every image to every caption of the batch."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.image = ImageTower(layers, hidden, heads, shared=hidden)
        self.text = TextTower(max(1, layers // 2), hidden, heads, shared=hidden)
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        image = F.normalize(self.image(images), dim=-1)
        text = F.normalize(self.text(captions), dim=-1)
        return self.scale.exp() * image @ text.T


def build(layers: int = 24, hidden: int = 1024, heads: int = 16) -> nn.Module:
    return TwoTowers(layers, hidden, heads)


def inputs(batch_size: int) -> dict[str, Tensor]:
    return {
        "images": torch.randn(batch_size, 3, IMAGE, IMAGE),
        "captions": torch.randint(0, VOCABULARY, (batch_size, WORDS)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    pairs = torch.arange(output.shape[0], device=output.device)
    return (F.cross_entropy(output, pairs) + F.cross_entropy(output.T, pairs)) / 2


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def data(batch_size: int) -> Iterator[dict[str, Tensor]]:
    while True:
        yield inputs(batch_size)
