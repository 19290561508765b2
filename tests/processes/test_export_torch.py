"""An exported plan runs under torch's own pipeline runtime with the whole model's gradients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graphplan.cli.main import run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("branches=2", "layers=2", "hidden=32", "heads=2", "sequence=8")


@pytest.mark.parametrize(
    ("planner", "schedule", "treatment"),
    [("graphpipe", "1f1b", "Linearised"), ("equal", "zero-bubble", "Exported")],
)
def test_torch_runs_an_exported_plan(
    planner: str,
    schedule: str,
    treatment: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Losses come out, and every gradient equals the whole model's."""
    model = [str(EXAMPLES / "mmt.py"), *(word for each in SMALL for word in ("--set", each))]
    plan = str(tmp_path / "plan.json")
    wishes = ["--gpus", "3", "--batch", "16", "--micro-batch", "4", "--no-baselines", "--quiet"]
    wishes += ["--planner", planner, "--schedule", schedule, "-o", plan]
    assert run_command(["search", *model, *wishes]) == 0
    folder = tmp_path / "exported"
    words = ["export", plan, "--to", "torch", "--model", *model, "-o", str(folder)]
    assert run_command(words) == 0
    assert treatment in capsys.readouterr().out
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [*launch, str(folder / "run.py"), "--steps", "2", "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sum("loss" in each for each in said) == 2
    gaps = [each["largest_gradient_difference"] for each in said if "rank" in each]
    assert len(gaps) == 3
    assert max(gaps) < 1e-6
