"""The partition bench: rows for both kinds of workload, each judged by the referee."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.pure.strategies import dag_prices
from tools.bench_partition import (
    Job,
    format_row,
    list_jobs,
    parse_arguments,
    run_job,
    simulate_sequentially,
)

WORKLOADS = Path(__file__).resolve().parents[2] / "tools" / "workloads"
LOAD = "maxload-layers-bert24-training.json"
PROFILED = "profiled-pipedream-vgg16.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one workload of each kind."""
    for name in (LOAD, PROFILED):
        shutil.copy(WORKLOADS / name, tmp_path / name)
    return tmp_path


def make_jobs(folder: Path, *options: str) -> list[Job]:
    """The jobs of a command line."""
    return list(list_jobs(parse_arguments([str(folder), *options])))


def test_solvers_run_where_they_apply(folder: Path) -> None:
    """`chain` has no max-load form, `ilp-cbc` no plans; `auto` has both."""
    jobs = make_jobs(folder, "--devices", "2,4", "--solvers", "auto,chain,ilp-cbc")
    assert [(job.path.name[:4], job.devices, job.solver) for job in jobs] == [
        ("maxl", 2, "auto"),
        ("maxl", 2, "ilp-cbc"),
        ("maxl", 4, "auto"),
        ("maxl", 4, "ilp-cbc"),
        ("prof", 2, "auto"),
        ("prof", 2, "chain"),
        ("prof", 4, "auto"),
        ("prof", 4, "chain"),
    ]


def test_a_maxload_row_meets_the_published_optimum(folder: Path) -> None:
    """Value, bound and optimum agree, and the referee accepts."""
    job = make_jobs(folder, "--match", "maxload", "--devices", "8", "--solvers", "downset")[0]
    row = run_job(job)
    assert row["value_s"] == pytest.approx(row["optimum_s"], rel=1e-6)
    assert (row["proven"], row["verdict"]) == (True, "legal")
    assert row["seconds"] > 0
    assert row["peak_bytes"] > 1 << 20
    assert "over optimum" in format_row(row)
    json.dumps(row)


def test_a_plan_row_is_simulated_and_judged(folder: Path) -> None:
    """The step is not below the bound; artificial dependencies do not make it shorter."""
    jobs = make_jobs(
        folder,
        *("--match", "profiled", "--devices", "2", "--schedule", "1f1b"),
        *("--solvers", "equal,equal:sequential", "--batch-per-device", "8"),
    )
    plain, sequential = map(run_job, jobs)
    assert plain["verdict"] == sequential["verdict"] == "legal"
    assert plain["bound_s"] <= plain["value_s"] <= sequential["value_s"] * (1 + 1e-9)


def test_what_does_not_fit_is_a_row_with_a_note(folder: Path) -> None:
    """A row without a value says why."""
    path = folder / LOAD
    content = json.loads(path.read_text())
    content["memory_bytes"] = 1000
    path.write_text(json.dumps(content))
    row = run_job(make_jobs(folder, "--match", "maxload", "--devices", "2")[0])
    assert (row["value_s"], row["verdict"]) == (None, "none")
    assert row["note"].startswith("NoFeasiblePlan: The op")
    assert "-" in format_row(row)


def test_artificial_dependencies_make_branches_wait() -> None:
    """Three branches of one second: side by side 1 + 2 s, one after the other 3 + 6 s."""
    stages = dag_prices([], 1, num_stages=3, forward_s=1.0, backward_s=2.0)
    assert simulate_sequentially(stages, "1f1b") == 9.0
