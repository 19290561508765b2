"""T5: an encoder-decoder from transformers, built from its config (nothing is downloaded).

T5-large by default. The model computes its own loss, so that this file gives none: graphplan takes
the output called `loss`.

    graphplan search examples/t5.py --gpus 8
    graphplan trace examples/t5.py --set layers=2 --set hidden=64 --set heads=4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

VOCABULARY = 32128


def build(layers: int = 24, hidden: int = 1024, heads: int = 16) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=4 * hidden,
        num_layers=layers,
        num_heads=heads,
        use_cache=False,
    )
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


def inputs(batch_size: int, sequence: int = 512) -> dict[str, Tensor]:
    return {
        "input_ids": torch.randint(0, VOCABULARY, (batch_size, sequence)),
        "labels": torch.randint(0, VOCABULARY, (batch_size, sequence // 4)),
    }


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def data(batch_size: int, sequence: int = 512) -> Iterator[dict[str, Tensor]]:
    while True:
        yield inputs(batch_size, sequence)
