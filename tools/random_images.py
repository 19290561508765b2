"""Random models of images: convolutions, hourglasses with skips, ends of ResNets."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.random_parts import Made, activate, classify, pick_width


class ConvBlock(nn.Module):
    """A convolution with norm, activation and, where it fits, a residual sum."""

    def __init__(self, source: random.Random, channels: int, width: int) -> None:
        super().__init__()
        kernel, stride = source.choice((1, 1, 3, 3, 3, 5, 7)), source.choice((1, 1, 1, 2))
        depthwise = source.random() < 0.2
        width = channels if depthwise else width
        groups = channels if depthwise else 1
        self.width, self.stride = width, stride
        bias = source.random() < 0.4
        self.conv = nn.Conv2d(
            channels, width, kernel, stride, padding=kernel // 2, groups=groups, bias=bias
        )
        norms: list[Callable[[int], nn.Module]] = [
            nn.BatchNorm2d, nn.BatchNorm2d, lambda w: nn.GroupNorm(4, w), lambda w: nn.Identity()
        ]  # fmt: skip
        self.norm = source.choice(norms)(width)
        self.act = source.choice(("relu", "relu", "relu", "silu", "gelu", "leaky_relu"))
        self.residual = source.random() < 0.6

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        if self.residual and y.shape == x.shape:
            y = y + x
        return activate(self.act, y)


class Cnn(nn.Module):
    """Convolution blocks with pooling between them."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.size = source.choice((16, 24, 32, 48, 64, 96, 112))
        width = pick_width(source, 8, 64 if self.size > 48 else 160, 4)
        self.stem = nn.Conv2d(3, width, source.choice((3, 7)), source.choice((1, 2)), padding=3)
        blocks, channels = [], width
        for _ in range(source.randint(4, 7)):
            grows = source.random() < 0.4
            block = ConvBlock(source, channels, min(512, channels * 2) if grows else channels)
            blocks.append(block)
            channels = block.width
        self.blocks = nn.ModuleList(blocks)
        self.pools = [source.choice(("", "", "max", "avg")) for _ in blocks]
        self.head = nn.Linear(channels, source.choice((10, 100, 1000)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block, pool in zip(self.blocks, self.pools, strict=True):
            x = block(x)
            if pool and x.shape[-1] >= 8:
                x = functional.max_pool2d(x, 2) if pool == "max" else functional.avg_pool2d(x, 2)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def make_cnn(source: random.Random) -> Made:
    """A random convolutional chain."""
    model = Cnn(source)
    classes = model.head.out_features

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "images": torch.randn(batch_size, 3, model.size, model.size),
            "labels": torch.randint(0, classes, (batch_size,)),
        }

    return model, inputs, classify


class Hourglass(nn.Module):
    """Down and up again, with skips that are concatenated."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        width, self.size = pick_width(source, 8, 48, 4), source.choice((32, 48, 64, 96, 128))
        self.transposed = source.random() < 0.5
        self.down = nn.ModuleList(
            [self._block(3, width), self._block(width, 2 * width), self._block(2 * width, width)]
        )
        up = nn.ConvTranspose2d(width, width, 2, 2) if self.transposed else nn.Identity()
        self.up = up
        self.merge = self._block(3 * width, width)
        self.head = nn.Conv2d(width, 5, 1)

    def _block(self, channels: int, width: int) -> nn.Module:
        conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        skip = self.down[1](self.down[0](images))
        low = self.down[2](functional.max_pool2d(skip, 2))
        up = self.up(low) if self.transposed else functional.interpolate(low, scale_factor=2)
        scores: Tensor = self.head(self.merge(torch.cat([up, skip], 1)))
        return scores


def make_hourglass(source: random.Random) -> Made:
    """A random small U-net."""
    model = Hourglass(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        size = (batch_size, model.size, model.size)
        return {
            "images": torch.randn(batch_size, 3, model.size, model.size),
            "labels": torch.randint(0, 5, size),
        }

    return model, inputs, classify


class Pyramid(nn.Module):
    """Bottlenecks of many channels on few pixels, as at the end of a ResNet."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.channels, self.size = pick_width(source, 64, 512, 16), source.choice((4, 7, 8, 14))
        width, blocks = self.channels // source.choice((2, 4)), []
        for stride in (1, source.choice((1, 2)), 2):
            for a, b, kernel, step in (
                (self.channels, width, 1, 1),
                (width, width, 3, stride),
                (width, self.channels, 1, 1),
            ):
                conv = nn.Conv2d(a, b, kernel, step, padding=kernel // 2, bias=False)
                blocks += [conv, nn.BatchNorm2d(b), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(self.channels, source.choice((10, 1000)))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(images).mean((2, 3)))
        return scores


def make_pyramid(source: random.Random) -> Made:
    """The end of a random ResNet."""
    model = Pyramid(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "images": torch.randn(batch_size, model.channels, model.size, model.size),
            "labels": torch.randint(0, model.head.out_features, (batch_size,)),
        }

    return model, inputs, classify
