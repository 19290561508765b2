"""Builds without memory for large tensors: what a build() may do while they stay without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graphplan.errors import GraphplanError
from graphplan.frontend import load_model_file, trace_model_file
from graphplan.frontend.sparing import LARGEST_REAL, sparing_build

WIDE = 2 * LARGEST_REAL
"""A length whose tensors get no memory."""


def build(make: Callable[[], nn.Module]) -> nn.Module:
    with sparing_build():
        return make()


def large(module: nn.Module) -> list[Tensor]:
    return [each for each in module.parameters() if each.numel() > LARGEST_REAL]


def test_large_tensors_have_no_memory_and_small_ones_have_values() -> None:
    """Whatever fills them."""
    module = build(lambda: nn.Sequential(nn.Linear(4, WIDE), nn.LayerNorm(4)))
    assert [each.is_meta for each in module.parameters()] == [True, True, False, False]
    assert torch.equal(dict(module.named_parameters())["1.weight"], torch.ones(4))


@pytest.mark.parametrize(
    "fill",
    [
        nn.init.trunc_normal_,
        nn.init.xavier_uniform_,
        nn.init.kaiming_normal_,
        nn.init.ones_,
        lambda weight: weight.data.mul_(0.5),
        lambda weight: weight.data.copy_(torch.ones(4)),
        lambda weight: weight.data[0].fill_(1.0),
    ],
)
def test_filling_a_large_tensor_takes_nothing(fill: Callable[[Tensor], Tensor]) -> None:
    """Truncated normals are drawn until all fit, which no tensor without values ever does."""

    def make() -> nn.Module:
        module = nn.Linear(4, WIDE)
        fill(module.weight)
        return module

    assert all(each.is_meta for each in large(build(make)))


@pytest.mark.parametrize("convert", ["half", "double", "cpu", "to"])
def test_modules_are_converted_and_stay_tied(convert: str) -> None:
    """peft moves every adapter to the device and dtype of its layer; fake tensors refused that."""

    def make() -> nn.Module:
        module = nn.ModuleList([nn.Embedding(WIDE, 4), nn.Linear(4, WIDE, bias=False)])
        first, second = module
        second.weight = first.weight
        return module.to(torch.bfloat16) if convert == "to" else getattr(module, convert)()

    module = build(make)
    (weight,) = module.parameters()
    dtypes = {"half": torch.float16, "double": torch.float64, "to": torch.bfloat16}
    assert weight.is_meta and weight.dtype == dtypes.get(convert, torch.float32)


def test_values_of_small_tensors_can_be_read() -> None:
    """Stochastic depth is a list of numbers in most vision models."""

    def make() -> nn.Module:
        rates = torch.linspace(0, 0.3, 4).tolist()
        kept = (torch.arange(4) > 1).nonzero().flatten()
        layers = [nn.Dropout(rates[int(index)]) for index in kept]
        return nn.Sequential(nn.Linear(4, WIDE), *layers)

    module = build(make)
    assert [round(each.p, 3) for each in module.modules() if isinstance(each, nn.Dropout)] == [
        0.2,
        0.3,
    ]
    assert all(each.is_meta for each in large(module))


def test_large_and_small_tensors_meet() -> None:
    """The result is large; nothing complains about two devices."""

    def make() -> nn.Module:
        module = nn.Linear(4, WIDE)
        module.register_buffer("table", torch.arange(WIDE)[:, None] * torch.arange(4))
        module.register_buffer("scaled", module.weight.detach() * torch.ones(4))
        return module

    module = build(make)
    assert {name: each.is_meta for name, each in module.named_buffers()} == {
        "table": True,
        "scaled": True,
    }


def test_draws_are_the_same_each_time_and_the_state_is_kept() -> None:
    """A build that draws its structure draws the same one in every process."""
    state = torch.random.get_rng_state()
    first, second = (build(lambda: nn.Linear(4, 4)) for _ in range(2))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert torch.equal(torch.random.get_rng_state(), state)


SOURCE = """
import torch
from torch import nn

def build():
    layer = nn.Linear(1 << 20, 1 << 20)
    if {condition}:
        raise RuntimeError("never")
    return nn.Sequential(nn.Linear(4, 1 << 20), layer.half().float(), nn.Linear(1 << 20, 4))

def inputs(batch_size):
    return (torch.zeros(batch_size, 4),)
"""


def test_a_file_that_converts_a_huge_model_needs_no_memory(tmp_path: Path) -> None:
    """Four terabytes: the conversion failed without memory, and a real build was tried."""
    path = tmp_path / "model.py"
    path.write_text(SOURCE.format(condition="layer.weight.numel() < 5"))
    graph = trace_model_file(load_model_file(path)).graph
    assert sum(each.spec.num_bytes(1) for each in graph.weights) > 4 << 40


def test_a_file_that_reads_large_values_is_built_for_real(tmp_path: Path) -> None:
    """Which cannot be had here, and says so in torch's words."""
    path = tmp_path / "model.py"
    path.write_text(SOURCE.format(condition="layer.weight.sum() > 5"))
    with pytest.raises(GraphplanError, match="memory"):
        trace_model_file(load_model_file(path))
