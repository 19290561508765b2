"""A model file whose data can be bad from some step on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8


class Chain(nn.Module):
    """Two blocks; the gradient of the square root is infinite at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sqrt(torch.relu(self.one(x) * x))
        made: torch.Tensor = self.two(x)
        return made


def build() -> nn.Module:
    return Chain()


def inputs(batch_size: int) -> dict[str, torch.Tensor]:
    ones = torch.rand(batch_size, WIDTH) + 0.5
    return {"x": ones, "target": torch.randn(batch_size, WIDTH)}


def loss(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output, batch["target"])


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def data(batch_size: int, fault: str = "none", step: int = 3) -> Iterator[Any]:
    """Good batches, and a bad one at a step."""
    number = 0
    while True:
        number += 1
        batch = inputs(batch_size)
        yield spoil(batch, fault) if number == step else batch


def spoil(batch: dict[str, torch.Tensor], fault: str) -> Any:
    """What data may be."""
    if fault == "odd":
        batch["x"][5, 2] = float("nan")
    if fault == "raise":
        raise OSError("the disk of the data is gone")
    if fault == "dtype":
        batch["x"] = batch["x"].double()
    if fault == "width":
        batch["x"] = batch["x"][:, :5]
    if fault == "empty":
        batch = {name: tensor[:0] for name, tensor in batch.items()}
    if fault == "rows":
        batch["x"] = batch["x"][1:]
    if fault == "array":
        batch["x"] = batch["x"].numpy()  # type: ignore[assignment]
    if fault == "structure":
        return list(batch.values())
    return batch
