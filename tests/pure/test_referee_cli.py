"""`graphplan check`: exit codes, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from graphplan.cli.main import run_command
from graphplan.files import write_noun
from tests.pure.legal import legal_plans


def test_a_legal_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A legal plan ends with exit code 0 and says what was checked."""
    path = tmp_path / "plan.json"
    write_noun(legal_plans()["branches"], path)
    assert run_command(["check", str(path)]) == 0
    assert "is legal: 5 stages on 5 devices" in capsys.readouterr().out
    assert run_command(["check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"legal": True, "violations": []}


def test_a_broken_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken rule ends with exit code 1, the rule, the place and the numbers."""
    path = tmp_path / "plan.json"
    plan = legal_plans()["chain"]
    peaks = plan.prediction.peak_bytes_by_device
    prices = msgspec.structs.replace(
        plan.prices, memory_bytes_by_device=(peaks[0] - 1, *plan.prices.memory_bytes_by_device[1:])
    )
    write_noun(msgspec.structs.replace(plan, prices=prices), path)
    assert run_command(["check", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("memory           device 0, instruction ")
    assert f"{peaks[0]:,} bytes are needed" in shown.out
    assert "breaks 1 rule(s) in 1 place(s)" in shown.err
    assert run_command(["check", str(path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["legal"] is False
    assert [each["rule"] for each in answer["violations"]] == ["memory"]


def test_not_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be read as a plan ends with exit code 2."""
    path = tmp_path / "plan.json"
    path.write_text('{"format": "graphplan/cluster", "version": 1}')
    assert run_command(["check", str(path)]) == 2
    assert "not 'graphplan/plan'" in capsys.readouterr().err
    assert run_command(["check", str(tmp_path / "missing.json")]) == 2
