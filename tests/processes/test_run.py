"""`graphplan run` as a user calls it: what it prints, writes and resumes from."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from graphplan.cli.main import run_command
from graphplan.files import read_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Transfer
from graphplan.nouns.timeline import Timeline
from graphplan_runtime.checkpoints.checkpoint import read_checkpoint, read_manifest
from graphplan_runtime.checkpoints.shelf import find_checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SETTINGS = ("branches=2", "layers=1", "hidden=16", "heads=2", "sequence=4")
MODEL = [str(EXAMPLES / "mmt.py"), *(word for each in SETTINGS for word in ("--set", each))]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Found by search, on two devices."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    wishes = ["--cluster", "cpu", "--gpus", "2", "--batch", "8", "--micro-batch", "2"]
    wishes += [
        "--planner",
        "equal",
        "--no-baselines",
        "--quiet",
        "-o",
        str(path),
    ]
    assert run_command(["search", *MODEL, *wishes]) == 0
    return path


def start_run(plan: Path, *options: str) -> subprocess.Popen[str]:
    """`graphplan run` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "graphplan", "run", str(plan), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def call_run(plan: Path, *options: str) -> dict[str, Any]:
    """What a run prints with --json."""
    run = start_run(plan, *options, "--json")
    output, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    facts: dict[str, Any] = json.loads(output)
    return facts


def test_a_run_tells_and_writes_what_happened(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object, a comparison with one process, and a timeline that can be compared."""
    path = tmp_path / "run.json"
    wishes = ("--device", "cpu", "--steps", "3", "--reference", "batch", "-o", str(path))
    facts = call_run(plan, *MODEL, *wishes)
    assert len(facts["losses"]) == len(facts["step_s"]) == 3
    assert facts["ranks"] == len(facts["peak_bytes_by_rank"]) == 2
    assert facts["numerics"]["float32_products"] == "highest"
    assert not facts["numerics"]["deterministic"]
    assert set(facts["versions"]) == {3}
    assert facts["reference"]["largest_loss_difference"] < 1e-5
    # The model's optimizer is Adam, which enlarges rounding errors of the smallest gradients.
    assert facts["reference"]["largest_parameter_difference"] < 1e-4
    timeline, program = read_noun(path, Timeline), read_noun(plan, Plan).parse_program()
    assert timeline.source == "measured"
    assert sorted(span.name for span in timeline.spans) == sorted(
        str(each)
        for line in program.instructions_by_device
        for each in line
        if not isinstance(each, Transfer)
    )
    assert run_command(["compare-run", str(plan), str(path)]) == 0
    assert "measured / predicted" in capsys.readouterr().out


def test_an_emulated_run_needs_no_model(plan: Path) -> None:
    """Real processes and messages, waits in place of compute."""
    facts = call_run(plan, "--emulate", "--steps", "2")
    assert facts["losses"] == []
    assert len(facts["step_s"]) == facts["ranks"] == 2
    assert facts["makespan_s"] >= 0.9 * facts["predicted_step_s"]


def test_a_killed_run_goes_on_from_its_last_checkpoint(plan: Path, tmp_path: Path) -> None:
    """A rank is killed at any moment while checkpoints are written at every step."""
    saved = ("--save", str(tmp_path / "saved"), "--save-every", "1", "--device", "cpu")
    run = start_run(plan, *MODEL, *saved, "--steps", "1000000")
    assert run.stdout is not None
    losses = [float(run.stdout.readline().split()[3]) for _ in range(4)]
    time.sleep(random.Random().random() * 0.2)
    os.kill(find_rank(plan, 1), signal.SIGKILL)
    output, errors = run.communicate(timeout=120)
    assert run.returncode == 1, errors
    losses += [float(line.split()[3]) for line in output.splitlines() if "loss" in line]
    found = find_checkpoint(tmp_path / "saved")
    assert found is not None
    manifest = read_manifest(found.path)
    assert manifest.step >= 4 - 1
    assert read_checkpoint(found.path, manifest, set(manifest.file_by_tensor)).keys()
    facts = call_run(
        plan, *MODEL, "--device", "cpu", "--steps", "2", "--resume", str(tmp_path / "saved")
    )
    for number, loss in enumerate(facts["losses"], start=manifest.step):
        if number < len(losses):
            assert loss == pytest.approx(losses[number], abs=1e-6)


def find_rank(plan: Path, rank: int) -> int:
    """The process of a rank."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = (path.parent / "cmdline").read_bytes().decode(errors="replace")
            environment = path.read_bytes().split(b"\0")
        except OSError:
            continue
        is_ours = "graphplan_runtime" in words and str(plan) in words
        if is_ours and f"RANK={rank}".encode() in environment:
            return int(path.parent.name)
    raise AssertionError(f"rank {rank} does not run")


ODD = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.BatchNorm1d(4).eval()
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last((self.frozen(x + 3) * self.turn).abs())

def build():
    return Odd()

def inputs(batch_size):
    return (torch.randn(batch_size, 4),)

def loss(output, batch):
    return output.pow(2).mean()
"""


def test_modes_and_complex_weights_are_as_build_left_them(tmp_path: Path) -> None:
    """The reference put a frozen batch norm into train mode; fused Adam refused complex weights."""
    (tmp_path / "odd.py").write_text(ODD)
    model, plan = str(tmp_path / "odd.py"), tmp_path / "odd.json"
    wishes = "--cluster cpu --gpus 2 --batch 8 --micro-batch 4 --planner equal --objective memory"
    words = ["search", model, *wishes.split(), "--no-baselines", "--quiet", "-o", str(plan)]
    assert run_command(words) == 0
    facts = call_run(plan, model, "--device", "cpu", "--steps", "3", "--reference", "micro-batch")
    assert facts["reference"]["largest_loss_difference"] < 1e-5
    assert facts["reference"]["largest_parameter_difference"] < 1e-4
    assert "hint" not in facts["reference"]
