"""Random small models, for property tests."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 4
KINDS = (
    "linear", "tied", "frozen", "add", "mul", "cat", "split", "norm", "dropout", "detach",
    "no_grad", "attend", "inplace", "scale",
)  # fmt: skip


class RandomModel(nn.Module):
    """A random DAG of small layers over [batch, 4] values; every value reaches the loss."""

    def __init__(self, recipe: list[tuple[str, int, int]], num_inputs: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.num_inputs = num_inputs
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleDict()
        for index, (kind, _, _) in enumerate(recipe):
            layer = self._make_layer(kind)
            if layer is not None:
                self.layers[str(index)] = layer

    @staticmethod
    def _make_layer(kind: str) -> nn.Module | None:
        if kind in ("linear", "no_grad", "inplace"):
            return nn.Linear(WIDTH, WIDTH)
        if kind == "frozen":
            return nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        if kind == "cat":
            return nn.Linear(2 * WIDTH, WIDTH)
        return nn.BatchNorm1d(WIDTH) if kind == "norm" else None

    def forward(self, inputs: list[Tensor]) -> Tensor:
        values = list(inputs)
        for index, (kind, a, b) in enumerate(self.recipe):
            first, second = values[a % len(values)], values[b % len(values)]
            values += self._step(kind, str(index), first, second)
        return torch.stack([value.pow(2).mean() for value in values]).sum()

    def _step(self, kind: str, index: str, x: Tensor, y: Tensor) -> list[Tensor]:
        layer: Any = self.layers[index] if index in self.layers else nn.Identity()
        if kind in ("linear", "frozen", "norm"):
            return [torch.tanh(layer(x))]
        if kind == "tied":
            return [torch.tanh(self.tied(x))]
        if kind == "add":
            return [x + y]
        if kind == "mul":
            return [torch.tanh(x * y)]
        if kind == "cat":
            return [layer(torch.cat([x, y], dim=-1))]
        if kind == "split":
            first, second = torch.cat([x, y], dim=-1).chunk(2, dim=-1)
            return [first, second]
        if kind == "dropout":
            return [functional.dropout(x, 0.3)]
        if kind == "detach":
            return [x.detach() * y]
        if kind == "attend":
            size = x.shape[0]
            scores = x.reshape(size, 2, 2) @ y.reshape(size, 2, 2).transpose(1, 2)
            return [(scores.softmax(-1) @ x.view(size, 2, 2)).reshape(size, WIDTH)]
        if kind == "inplace":
            z = layer(x)
            z[:, 1:] += y[:, 1:]
            return [z]
        if kind == "scale":
            return [x / x.shape[0] + torch.ones(x.shape[0], 1)]
        with torch.no_grad():
            target = layer(x)
        return [target * y]


@st.composite
def random_models(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], int]:
    """A recipe for a RandomModel and its number of inputs."""
    num_inputs = draw(st.integers(1, 3))
    step = st.tuples(st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 30))
    recipe = draw(st.lists(step, min_size=1, max_size=8))
    return [*recipe, ("linear", 0, 0)], num_inputs
