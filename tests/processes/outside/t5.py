"""A small T5 from transformers: encoder, decoder, tied embeddings, one position bias for all."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def build() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        use_cache=False,
    )
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


def inputs(batch_size: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(1, 99, (batch_size, 12)),
        "labels": torch.randint(1, 99, (batch_size, 8)),
    }


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
