"""`simulate` and `compare` on a terminal and in a pipe: what does not fit, and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphplan.cli.compare import WIDTH, render_rows
from graphplan.cli.main import run_command
from graphplan.files import write_noun
from graphplan.nouns.plan import Plan
from tests.pure.plans import make_plan_example


@pytest.fixture
def tight(tmp_path: Path) -> tuple[Plan, str]:
    """A plan whose devices are a byte smaller than the largest peak."""
    plan = make_plan_example().plan
    peak = max(plan.prediction.peak_bytes_by_device)
    types = [msgspec.structs.replace(kind, memory_bytes=peak - 1) for kind in plan.cluster.types]
    small = msgspec.structs.replace(plan.cluster, types=tuple(types), usable_memory=1.0)
    plan = msgspec.structs.replace(plan, cluster=small)
    path = tmp_path / "plan.json"
    write_noun(plan, path)
    return plan, str(path)


def test_a_simulation_that_does_not_fit_says_so(
    tight: tuple[Plan, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which device, and by how much; it is an answer and no error."""
    plan, path = tight
    assert run_command(["simulate", path]) == 0
    said = capsys.readouterr().out
    peaks = plan.prediction.peak_bytes_by_device
    assert f"Does not fit: device {peaks.index(max(peaks))} needs" in said
    assert "1 B too much" in said
    assert run_command(["simulate", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert max(found["excess_bytes_by_device"]) == 1


def test_a_simulation_that_fits_says_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual case."""
    write_noun(make_plan_example().plan, tmp_path / "plan.json")
    assert run_command(["simulate", str(tmp_path / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is True
    assert set(found["excess_bytes_by_device"]) == {0}


def test_compared_planners_stand_in_columns() -> None:
    """Reasons stand below the table, and nothing is wider than a page."""
    figures = {"stages": 2, "samples_per_s": 1303.0, "bubble": 0.024, "peak_bytes": 3 << 28}
    rows: list[dict[str, Any]] = [
        {"planner": "data-parallel", "schedule": "auto", "step_s": None, "note": "no room " * 30},
        {"planner": "equal", "schedule": "auto", "step_s": 0.05, "seconds": 0.06, **figures},
        {"planner": "chain", "schedule": "auto", "step_s": 0.0491, "seconds": 0.14, **figures},
    ]
    lines = render_rows(rows)
    assert lines[:4] == [
        "planner        schedule  stages  step, ms  samples/s  bubble, %  peak, GiB  search, s",
        "data-parallel  auto           -         -          -          -          -          -",
        "equal          auto           2     50.00    1,303.0        2.4       0.75       0.06",
        "chain          auto           2     49.10    1,303.0        2.4       0.75       0.14"
        "  <- fastest",
    ]
    assert lines[5].startswith("data-parallel, auto: no room")
    assert max(map(len, lines)) <= WIDTH
