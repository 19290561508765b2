"""A small CLIP from transformers; its contrastive loss compares the samples of a micro-batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def build() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    layers: dict[str, Any] = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    text = CLIPTextConfig(vocab_size=99, hidden_size=32, max_position_embeddings=16, **layers)
    vision = CLIPVisionConfig(hidden_size=32, image_size=32, patch_size=8, **layers)
    config = CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16
    )
    return Contrastive(CLIPModel(config))


class Contrastive(nn.Module):
    """CLIP with its own loss switched on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        found = self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True)
        loss: torch.Tensor = found.loss
        return loss


def inputs(batch_size: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(1, 98, (batch_size, 16)),
        "pixel_values": torch.randn(batch_size, 3, 32, 32),
    }


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
