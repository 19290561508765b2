"""ResNet-50: the usual convolutional chain of residual blocks.

graphplan search examples/resnet.py --gpus 4
graphplan trace examples/resnet.py --set width=8 --set size=64
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = (3, 4, 6, 3)


def build_conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution with batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = build_conv(channels, width, 1)
        self.mix = build_conv(width, width, 3, stride)
        self.expand = build_conv(width, 4 * width, 1)
        changes = stride != 1 or channels != 4 * width
        self.shortcut = build_conv(channels, 4 * width, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.mix(F.relu(self.reduce(x))))
        return F.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    """Four groups of bottleneck blocks."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = build_conv(3, width, 7, 2)
        blocks, channels = [], width
        for group, count in enumerate(BLOCKS):
            for index in range(count):
                stride = 2 if group and index == 0 else 1
                blocks.append(Bottleneck(channels, width << group, stride))
                channels = 4 * (width << group)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, stride=2, padding=1)
        return self.head(self.blocks(x).mean((2, 3)))


def build(width: int = 64) -> nn.Module:
    return ResNet(width, classes=1000)


def inputs(batch_size: int, size: int = 224) -> dict[str, Tensor]:
    return {
        "images": torch.randn(batch_size, 3, size, size),
        "labels": torch.randint(0, 1000, (batch_size,)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["labels"])


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def data(batch_size: int, size: int = 224) -> Iterator[dict[str, Tensor]]:
    while True:
        yield inputs(batch_size, size)
