"""An exported plan runs under torch's own pipeline runtime with the whole model's gradients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphplan.cli.main import run_command

WITH_TARGET = """
import torch
from torch import nn


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, target):
        return (self.second(self.first(x).relu()) - target).square().mean()


def build():
    return Distance()


def inputs(batch_size):
    return {"x": torch.randn(batch_size, 16), "target": torch.randn(batch_size, 16)}
"""
TIED = """
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.full((16,), 0.5), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens) * self.table
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x).square().mean()


def build():
    return Tied()


def inputs(batch_size):
    return {"tokens": torch.randint(0, 32, (batch_size, 4))}
"""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("hidden=32", "heads=2", "sequence=8")


@pytest.mark.parametrize(
    ("planner", "schedule", "branches", "treatment"),
    [("graphpipe", "1f1b", 2, "Linearised"), ("equal", "zero-bubble", 1, "Exported")],
)
def test_torch_runs_an_exported_plan(
    planner: str,
    schedule: str,
    branches: int,
    treatment: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Losses come out, and every gradient equals the whole model's."""
    settings = (f"branches={branches}", f"layers={4 // branches}", *SMALL)
    model = [str(EXAMPLES / "mmt.py"), *(word for each in settings for word in ("--set", each))]
    wishes = ["--gpus", "3", "--batch", "16", "--planner", planner, "--schedule", schedule]
    # torch cannot split the backward of a stage that begins inside of a layer.
    wishes += ["--keep", "towers.*.*"]
    said = run_exported(model, wishes, tmp_path, num_ranks=3)
    assert treatment in capsys.readouterr().out
    check_records(said, num_ranks=3)


def test_a_model_input_may_be_called_target(tmp_path: Path) -> None:
    """torch's `step` took it for its own argument of that name, and the stage went without.

    The second stage has no weights; torch's optimizers want some.
    """
    model = tmp_path / "model.py"
    model.write_text(WITH_TARGET)
    wishes = ["--gpus", "2", "--batch", "8", "--planner", "equal", "--schedule", "1f1b"]
    check_records(run_exported([str(model)], wishes, tmp_path, num_ranks=2), num_ranks=2)


def test_tied_weights_and_recomputation_are_exported(tmp_path: Path) -> None:
    """Embedding and head share a weight across ranks; every stage is recomputed as a whole."""
    model = tmp_path / "model.py"
    model.write_text(TIED)
    wishes = ["--gpus", "2", "--batch", "16", "--planner", "equal", "--schedule", "1f1b"]
    wishes += ["--recompute", "full"]
    check_records(run_exported([str(model)], wishes, tmp_path, num_ranks=2), num_ranks=2)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert all(stage["recompute"] == stage["ops"] for stage in plan["stages"]["stages"])


def run_exported(
    model: list[str], wishes: list[str], folder: Path, *, num_ranks: int
) -> list[dict[str, Any]]:
    """Search, export and run two steps under torchrun; what the ranks say."""
    plan, exported = str(folder / "plan.json"), folder / "exported"
    wishes = [*wishes, "--micro-batch", "4", "--no-baselines", "--quiet", "-o", plan]
    assert run_command(["search", *model, *wishes]) == 0
    words = ["export", plan, "--to", "torch", "--model", *model, "-o", str(exported)]
    assert run_command(words) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={num_ranks}"]
    done = subprocess.run(
        [*launch, str(exported / "run.py"), "--steps", "2", "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check_records(said: list[dict[str, Any]], *, num_ranks: int) -> None:
    """Two losses, and on every rank the gradients of the whole model."""
    assert sum("loss" in each for each in said) == 2
    gaps = [each["largest_gradient_difference"] for each in said if "rank" in each]
    assert len(gaps) == num_ranks
    assert max(gaps) < 1e-6
