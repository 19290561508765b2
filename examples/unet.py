"""U-Net: a convolutional encoder and decoder with skip connections over the whole depth.

graphplan search examples/unet.py --gpus 4
graphplan trace examples/unet.py --set depth=2 --set width=8
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 21


def build_block(channels: int, width: int) -> nn.Sequential:
    """Two convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Each level of the decoder reads the same level of the encoder."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            build_block(a, b) for a, b in zip([3, *widths], widths[:-1], strict=False)
        )
        self.bottom = build_block(widths[-2], widths[-1])
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(build_block(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, skips = images, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, block, skip in zip(self.grow, self.up, reversed(skips), strict=True):
            x = block(torch.cat([grow(x), skip], dim=1))
        return self.head(x)


def build(depth: int = 4, width: int = 64) -> nn.Module:
    return UNet(depth, width)


def inputs(batch_size: int, size: int = 256) -> dict[str, Tensor]:
    return {
        "images": torch.randn(batch_size, 3, size, size),
        "masks": torch.randint(0, CLASSES, (batch_size, size, size)),
    }


def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["masks"])


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def data(batch_size: int, size: int = 256) -> Iterator[dict[str, Tensor]]:
    while True:
        yield inputs(batch_size, size)
