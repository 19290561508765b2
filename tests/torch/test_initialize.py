"""A rank makes the weights of its own stages only, with the values that build() gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphplan.frontend import ModelFile, load_model_file
from graphplan_runtime.stages.initialize import initialize_weights, list_weights

SOURCE = """
import torch
from torch import nn

def build(width: int = 4):
    first = nn.Linear(4, 4)
    middle = nn.Linear(width, width)
    last = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    last[0].weight.data.mul_(0.5)
    return nn.ModuleDict({"first": first, "middle": middle, "last": last})

def inputs(batch_size: int):
    return {"x": torch.zeros(batch_size, 4)}
"""

Load = Callable[..., ModelFile]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """The model file with some settings."""
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return lambda **settings: load_model_file(path, settings=settings)


def test_exact_values_are_those_of_build(load: Load) -> None:
    """Also for weights that come after others which are not wanted."""
    torch.manual_seed(3)
    wanted = list_weights(load().build())
    names = {name for name in wanted if name.startswith("last")}
    found = initialize_weights(load(), names, seed=3)
    assert found.keys() == names
    assert all(torch.equal(found[name], wanted[name]) for name in names)


def test_no_memory_for_the_weights_of_others(load: Load) -> None:
    """A layer of a million terabytes on another rank does no harm."""
    names = {"first.weight", "last.0.weight"}
    found = initialize_weights(load(width=1 << 30), names, seed=3, exact=False)
    assert found.keys() == names
    again = initialize_weights(load(width=1 << 30), {"last.0.weight"}, seed=3, exact=False)
    assert torch.equal(found["last.0.weight"], again["last.0.weight"])
    assert 0 < float(found["last.0.weight"].detach().abs().max()) <= 0.25
