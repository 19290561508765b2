"""Ops that mix samples are marked; a run on halves of a batch tells whether they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphplan.frontend import trace_module
from graphplan.frontend.example import split_arguments
from graphplan.nouns.opgraph import OpGraph

WIDTH, LENGTH, ROWS = 6, 4, 8


class Model(nn.Module):
    """A linear layer, and then what a case does to its result."""

    def __init__(self, then: Callable[[Any, Tensor], Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(parts)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, self.linear(x))


def make(then: Callable[[Any, Tensor], Tensor], *parts: nn.Module) -> Model:
    torch.manual_seed(1)
    return Model(then, *parts)


def labels(x: Tensor) -> Tensor:
    return (x[:, 0, 0] > 0).long()


def lengths(x: Tensor) -> Tensor:
    return (x[:, 0, 0] > 0).long() + 1


def attend_to_samples(turned: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(turned, turned, turned)


CALM: dict[str, Callable[[], Model]] = {
    "layer norm": lambda: make(lambda m, y: m.parts[0](y), nn.LayerNorm(WIDTH)),
    "group norm": lambda: make(lambda m, y: m.parts[0](y), nn.GroupNorm(2, LENGTH)),
    "frozen batch norm": lambda: make(lambda m, y: m.parts[0](y), nn.BatchNorm1d(LENGTH).eval()),
    "attention": lambda: make(
        lambda m, y: functional.scaled_dot_product_attention(y, y, y) @ y.transpose(1, 2)
    ),
    "softmax of features": lambda: make(lambda m, y: torch.softmax(y, -1) * 3),
    "softmax of merged rows": lambda: make(lambda m, y: torch.softmax(y.view(-1, WIDTH), 1)),
    "convolution": lambda: make(lambda m, y: m.parts[0](y), nn.Conv1d(LENGTH, 3, 3)),
    "recurrence": lambda: make(
        lambda m, y: m.parts[0](y)[0], nn.GRU(WIDTH, WIDTH, batch_first=True)
    ),
    "two halves joined": lambda: make(lambda m, y: torch.cat([y, -y]).tanh().chunk(2)[0]),
    "last words": lambda: make(lambda m, y: y[torch.arange(y.shape[0]), lengths(y)]),
    "last words, flat": lambda: make(
        lambda m, y: y.flatten(0, 1)[torch.arange(y.shape[0]) * LENGTH + lengths(y)]
    ),
    "cross entropy": lambda: make(
        lambda m, y: functional.cross_entropy(y[:, 0], labels(y.detach())) + y.mean()
    ),
    "mean of a sum": lambda: make(lambda m, y: (y**2).sum() / y.shape[0] - 2 * y.mean()),
    "second moments": lambda: make(
        lambda m, y: (y[:, 0].t() @ y[:, 0] / y.shape[0]).mean() + 1 / (1 + m.linear.bias**2).sum()
    ),
}
MIXED: dict[str, tuple[str, Callable[[], Model]]] = {
    "batch norm": ("statistics", lambda: make(lambda m, y: m.parts[0](y), nn.BatchNorm1d(LENGTH))),
    "contrast": (
        "compare",
        lambda: make(
            lambda m, y: functional.cross_entropy(y[:, 0] @ y[:, 1].t(), torch.arange(y.shape[0]))
        ),
    ),
    "distances": ("compare", lambda: make(lambda m, y: (y[None, :, 0] - y[:, None, 1]).relu())),
    "softmax of samples": ("compare", lambda: make(lambda m, y: torch.softmax(y, 0) * y)),
    "attention to samples": (
        "compare",
        lambda: make(lambda m, y: attend_to_samples(y.transpose(0, 1).unsqueeze(0))),
    ),
    "time for batch": ("compare", lambda: make(lambda m, y: m.parts[0](y)[0], nn.GRU(WIDTH, 3))),
    "running sum": ("order", lambda: make(lambda m, y: torch.cumsum(y, 0))),
    "next sample": ("order", lambda: make(lambda m, y: y * torch.roll(y, 1, 0))),
    "best sample": ("order", lambda: make(lambda m, y: torch.sort(y, dim=0)[0][:, 0] * y[:, 1])),
    "first sample": ("order", lambda: make(lambda m, y: y * y[0])),
    "all but one": ("order", lambda: make(lambda m, y: y[1:] - 1)),
    "next by number": (
        "order",
        lambda: make(lambda m, y: y * y[(torch.arange(y.shape[0]) + 1) % y.shape[0]]),
    ),
    "centred": ("statistics", lambda: make(lambda m, y: y - y.mean(0))),
    "scaled by the spread": ("statistics", lambda: make(lambda m, y: y / y.std(0))),
    "unit columns": ("statistics", lambda: make(lambda m, y: functional.normalize(y, dim=0) * y)),
    "largest": ("statistics", lambda: make(lambda m, y: y.amax(0))),
    "root of a mean": ("statistics", lambda: make(lambda m, y: (y**2).mean().sqrt() + 1)),
    "product of means": ("statistics", lambda: make(lambda m, y: y.mean() * y.mean() + 1)),
    "masked mean": (
        "count",
        lambda: make(lambda m, y: (y * (y > 0)).sum() / (y > 0).sum().clamp(min=1)),
    ),
    "chosen words": ("count", lambda: make(lambda m, y: y[y > 0].mean())),
    "ignored labels": (
        "count",
        lambda: make(
            lambda m, y: functional.cross_entropy(y[:, 0], labels(y.detach()), ignore_index=0)
        ),
    ),
    "weighted classes": (
        "count",
        lambda: make(
            lambda m, y: functional.cross_entropy(
                y[:, 0], labels(y.detach()), weight=torch.arange(1.0, 1 + WIDTH)
            )
        ),
    ),
    "sum": ("sum", lambda: make(lambda m, y: (y**2).sum())),
}


def end(output: Tensor, batch: Any) -> Tensor:
    """The output itself where it is a scalar."""
    return output if output.dim() == 0 else output.pow(2).mean()


def inputs(batch_size: int) -> tuple[Tensor]:
    rng = torch.Generator().manual_seed(batch_size)
    return (torch.randn(batch_size, LENGTH, WIDTH, generator=rng),)


def measure_gap(module: nn.Module, loss: Any, batch: Any) -> float:
    """How far the loss of a batch is from the mean of the losses of its halves."""

    def run(part: tuple[Tensor, ...]) -> float:
        with torch.random.fork_rng():
            return float(loss(module(*part), part))

    args, _ = split_arguments(batch)
    halves = zip(*(tensor.chunk(2) for tensor in args), strict=True)
    with torch.no_grad():
        return abs(run(args) - sum(map(run, halves)) / 2)


def capture(model: nn.Module) -> OpGraph:
    return trace_module(model, inputs, loss=end).graph


@pytest.mark.parametrize("name", CALM)
def test_what_keeps_samples_apart_is_not_marked(name: str) -> None:
    """Nor does the loss depend on how the batch is split."""
    model = CALM[name]()
    assert measure_gap(model, end, inputs(ROWS)) < 1e-5
    assert capture(model).mixing == ()


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_samples_is_marked(name: str) -> None:
    """One op, in the word for its kind, where the loss of halves is another one."""
    kind, build = MIXED[name]
    model = build()
    assert measure_gap(model, end, inputs(ROWS)) > 1e-5
    assert [each.kind for each in capture(model).mixing] == [kind]


def test_marks_are_outside_of_the_fingerprint() -> None:
    """Plans of graphs that were captured before there were marks stay valid."""
    graph = capture(MIXED["contrast"][1]())
    bare = msgspec.structs.replace(graph, mixing=())
    assert bare.fingerprint == graph.fingerprint
    data = msgspec.to_builtins(graph)
    del data["mixing"]
    assert msgspec.convert(data, OpGraph).mixing == ()
