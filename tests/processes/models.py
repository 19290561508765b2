"""Small models of every shape that the runtime must handle, in fp64, with data and loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 6


class Chain(nn.Module):
    """Four blocks in a row."""

    def __init__(self, num_blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Towers(nn.Module):
    """Two towers with an input each, joined by a head."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.right = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.head = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.left(x), self.right(other)], dim=1)
        return torch.tanh(self.head(joined))


class UNet(nn.Module):
    """Down, middle and up, with skips over the stages between, and batch-independent norms."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv1d(1, 3, 3, padding=1)
        self.down2 = nn.Conv1d(3, 4, 3, padding=1)
        self.middle = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.up2 = nn.Conv1d(8, 3, 3, padding=1)
        self.up1 = nn.Conv1d(6, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.tanh(self.down1(x.unsqueeze(1)))
        two = torch.tanh(self.down2(one))
        low = torch.tanh(self.norm(self.middle(two)))
        up = torch.tanh(self.up2(torch.cat([low, two], dim=1)))
        made: torch.Tensor = self.up1(torch.cat([up, one], dim=1))
        return made.squeeze(1)


class Tied(nn.Module):
    """An embedding whose weight is also the output layer, and a bias that every block shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.out = nn.Linear(WIDTH, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = torch.tanh(block(x) * self.scale)
        made: torch.Tensor = self.out(x)
        return made


class Mixed(nn.Module):
    """A small multi-modal transformer: two branches of attention, concatenated at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True) for _ in "ab"
        )
        self.head = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        parts = [self.branches[0](one).mean(dim=1), self.branches[1](two).mean(dim=1)]
        made: torch.Tensor = self.head(torch.cat(parts, dim=1))
        return made


class Frozen(nn.Module):
    """A frozen trunk, of which nothing needs a backward, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).requires_grad_(False)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trunk = self.trunk(x)
        made: torch.Tensor = self.head(torch.tanh(self.middle(trunk)) + trunk)
        return made


class Roots(nn.Module):
    """Where a sample is zero the output is finite, and the gradient of the first layer is not."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(torch.sqrt((self.one(x) * x).square()))
        return made


class HandsOn(nn.Module):
    """A stage in the middle returns its input as it is: dropout that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Dropout(0.0)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.middle(self.first(x)))
        return made


class Rfft(nn.Module):
    """The spectrum of real rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.fft.rfft(x)
        return made


class Filter(nn.Module):
    """Weighs the spectrum; conjugated, which torch only marks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.view_as_complex(self.weight)).conj()


class Irfft(nn.Module):
    """Back from the spectrum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.fft.irfft(x, n=WIDTH)
        return made


class Spectral(nn.Module):
    """Complex values and gradients between stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), Rfft())
        self.middle = Filter()
        self.last = nn.Sequential(Irfft(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.middle(self.first(x)))
        return made


class Biased(nn.Module):
    """Blocks that all read one value made of weights alone, as relative positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = torch.softmax(self.table @ self.table, dim=-1)
        for block in self.blocks:
            x = torch.tanh(block(x) @ bias)
        return x


class Noisy(nn.Module):
    """Dropout in every block, and batch norm in the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)) for _ in range(2)
        )
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        made: torch.Tensor = self.norm(x)
        return made


class Normed(nn.Module):
    """Batch norm, whose statistics are those of a micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(torch.tanh(self.norm(self.one(x))))
        return made


class Sum(nn.Module):
    """a += w_s at every stage, from 0."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Plus() for _ in range(num_blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Plus(nn.Module):
    """a += w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


class Product(Sum):
    """a *= w_s at every stage: the backward uses the weights."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.blocks = nn.ModuleList(Times() for _ in range(num_blocks))


class Times(Plus):
    """a *= w, from w = 1/2."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.w, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


class Diamond(Product):
    """a *= w_0, then two branches that are added, then a *= w_3."""

    def __init__(self) -> None:
        super().__init__(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, left, right, last = self.blocks
        x = first(x)
        made: torch.Tensor = last(left(x) + right(x))
        return made


def half_square(output: torch.Tensor, batch: Any) -> torch.Tensor:
    """Half of the squared distance, a mean over samples."""
    loss: torch.Tensor = (output - batch[-1]).square().mean() / 2
    return loss


def mean_square(output: torch.Tensor, batch: Any) -> torch.Tensor:
    """Against the last tensor of the batch."""
    return functional.mse_loss(output, batch[-1])


def next_token(output: torch.Tensor, batch: Any) -> torch.Tensor:
    """Cross entropy of the tokens themselves, a mean over samples and positions."""
    return functional.cross_entropy(output.flatten(0, 1), batch[-1].flatten())


def floats(*shapes: tuple[int, ...]) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches of normal numbers; each shape is that of one sample."""
    return lambda size: tuple(torch.randn(size, *shape) for shape in shapes)


def constants(*values: float) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches that hold nothing but some numbers."""
    return lambda size: tuple(torch.full((size, 1), value) for value in values)


def tokens(length: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches of token numbers and targets."""
    return lambda size: (torch.randint(11, (size, length)), torch.randint(11, (size, length)))


@dataclass(frozen=True)
class Case:
    """A model with its inputs, its loss and a cut into stages by module."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    stage_by_module: dict[str, int] = field(default_factory=dict)
    loss: Callable[[Any, Any], torch.Tensor] = mean_square

    @property
    def num_stages(self) -> int:
        """How many stages the cut has."""
        return 1 + max(self.stage_by_module.values())


CASES: dict[str, Case] = {
    **{
        f"{name}{num}": Case(
            functools.partial(model, num),
            constants(start, 1.0),
            {f"blocks.{i}": i for i in range(num)},
            half_square,
        )
        for name, model, start in (("sum", Sum, 0.0), ("product", Product, 1.0))
        for num in (1, 2, 3, 4)
    },
    "diamond": Case(
        Diamond, constants(1.0, 1.0), {f"blocks.{i}": i for i in range(4)}, half_square
    ),
    "biased": Case(
        Biased,
        floats((WIDTH,), (WIDTH,)),
        {f"blocks.{i}": i for i in range(3)},
    ),
    "noisy": Case(
        Noisy,
        floats((WIDTH,), (WIDTH,)),
        {"blocks.0": 0, "blocks.1": 1, "norm": 1},
    ),
    "normed": Case(
        Normed,
        floats((WIDTH,), (WIDTH,)),
        {"one": 0, "norm": 0, "two": 1},
    ),
    "chain": Case(
        Chain,
        floats((WIDTH,), (WIDTH,)),
        {f"blocks.{i}": i for i in range(4)},
    ),
    "long": Case(
        lambda: Chain(8),
        floats((WIDTH,), (WIDTH,)),
        {f"blocks.{i}": i for i in range(8)},
    ),
    "towers": Case(
        Towers,
        floats((WIDTH,), (3,), (WIDTH,)),
        {"left": 0, "right": 1, "head": 2},
    ),
    "unet": Case(
        UNet,
        floats((8,), (8,)),
        {"down1": 0, "down2": 1, "middle": 2, "norm": 2, "up2": 2, "up1": 3},
    ),
    "mmt": Case(
        Mixed,
        floats((4, WIDTH), (3, WIDTH), (WIDTH,)),
        {"branches.0": 0, "branches.1": 1, "head": 2},
    ),
    "tied": Case(
        Tied,
        tokens(3),
        {"embed": 0, "blocks.0": 0, "blocks.1": 1, "out": 2},
        next_token,
    ),
    "spectral": Case(
        Spectral,
        floats((WIDTH,), (WIDTH,)),
        {"first": 0, "middle": 1, "last": 2},
    ),
    "roots": Case(
        Roots,
        floats((WIDTH,), (WIDTH,)),
        {"one": 0, "two": 1},
    ),
    "hands-on": Case(
        HandsOn,
        floats((WIDTH,), (WIDTH,)),
        {"first": 0, "middle": 1, "last": 2},
    ),
    "frozen": Case(
        Frozen,
        floats((WIDTH,), (WIDTH,)),
        {"trunk": 0, "middle": 1, "head": 2},
    ),
}
