"""A small decoder of one's own, and the decoders of transformers, as a model file without dropout.

kind=own | llama | mistral | qwen2 | gpt2, tied=true | false
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WORDS, LENGTH, WIDTH = 64, 8, 32


class Layer(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return x + torch.tanh(self.inner(x))


class Own(nn.Module):
    """Embedding, residual layers, norm and head."""

    def __init__(self, layers: int, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Outside(nn.Module):
    """A causal language model of transformers that returns its scores."""

    def __init__(self, kind: str, layers: int, *, tied: bool) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM

        sizes: dict[str, Any] = {"vocab_size": WORDS, "tie_word_embeddings": tied}
        if kind == "gpt2":
            sizes |= {"n_layer": layers, "n_embd": WIDTH, "n_head": 2, "n_positions": LENGTH}
            sizes |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        else:
            sizes |= {"num_hidden_layers": layers, "hidden_size": WIDTH, "intermediate_size": 64}
            sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
        config = AutoConfig.for_model(kind, use_cache=False, **sizes)
        self.model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor) -> Any:
        return self.model(input_ids=tokens, use_cache=False).logits


def build(kind: str = "own", layers: int = 4, *, tied: bool = False) -> nn.Module:
    return Own(layers, tied=tied) if kind == "own" else Outside(kind, layers, tied=tied)


def inputs(batch_size: int) -> dict[str, Tensor]:
    text = torch.randint(0, WORDS, (batch_size, LENGTH + 1))
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(output.flatten(0, 1), batch["targets"].flatten())
