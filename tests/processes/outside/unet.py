"""A small conditional U-Net from diffusers, trained to predict noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def build() -> nn.Module:
    from diffusers import UNet2DConditionModel

    # diffusers is half typed: its classes are neither modules nor typed functions to mypy.
    make: Any = UNet2DConditionModel
    model: nn.Module = make(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=4,
    )
    return model


def inputs(batch_size: int) -> dict[str, torch.Tensor]:
    return {
        "sample": torch.randn(batch_size, 4, 8, 8),
        "timestep": torch.randint(0, 1000, (batch_size,)),
        "encoder_hidden_states": torch.randn(batch_size, 6, 16),
        "noise": torch.randn(batch_size, 4, 8, 8),
    }


def loss(output: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output.sample, batch["noise"])


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
