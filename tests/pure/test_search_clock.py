"""The clock has no say in a search: it may end one, and then the plan says so."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphplan.cost.hardware import find_cluster
from graphplan.errors import SearchLimit
from graphplan.files import write_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.planner import collect, search
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import Progress, search_plan
from graphplan.referee import check_plan
from tests.pure.opgraphs import mlp, two_towers

SMALL = SearchOptions(batch_size=32, effort=0.25)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "graph"), [("mlp", mlp(6, 4096)), ("towers", two_towers(2048))])
def test_a_busy_machine_gives_the_same_bytes(name: str, graph: OpGraph, tmp_path: Path) -> None:
    """The command, in fresh processes, idle and beside busy ones, with other hash seeds, zones and
    folders; nothing of the clock is patched."""
    write_noun(graph, tmp_path / f"{name}.json")
    command = [sys.executable, "-m", "graphplan", "search", str(tmp_path / f"{name}.json")]
    command += ["--cluster", "pcie-8", "--gpus", "4", "--batch", "32", "--quiet", "-o"]
    found = set()
    for number, busy in enumerate((0, 4)):
        loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        folder = tmp_path / str(number)
        folder.mkdir()
        env = os.environ | {"PYTHONHASHSEED": str(number), "TZ": ("UTC", "Asia/Tokyo")[number]}
        env["PYTHONPATH"] = str(ROOT)
        try:
            subprocess.run([*command, "plan.json"], env=env, cwd=folder, check=True)
        finally:
            for load in loads:
                load.kill()
                load.wait()
        found.add(hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest())
    assert len(found) == 1


@pytest.mark.parametrize("when", [0, 1, 3, 10, 30, 100])
def test_an_interrupted_search_has_a_legal_plan(when: int) -> None:
    """Ctrl-C at any moment gives the best so far, once there is something."""
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) > when and progress.step_s < float("inf"):
            raise KeyboardInterrupt

    plan = search_plan(mlp(4, 1024), find_cluster("summit", gpus=4), SMALL, watch=watch)
    assert plan.provenance.ended == "user"
    assert not check_plan(plan).violations


def test_who_ends_a_search_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of effort 100 went on for a minute after Ctrl-C, with an order of its effort."""
    efforts: list[float] = []
    schedule_stages = collect.schedule_stages

    def schedule(*args: Any, effort: float, **wishes: Any) -> Any:
        efforts.append(effort)
        return schedule_stages(*args, effort=effort, **wishes)

    def watch(progress: Progress) -> None:
        if progress.step_s < float("inf"):
            raise KeyboardInterrupt

    monkeypatch.setattr(search, "schedule_stages", schedule)
    options = SearchOptions(batch_size=32, effort=100.0)
    plan = search_plan(mlp(4, 1024), find_cluster("summit", gpus=4), options, watch=watch)
    assert plan.provenance.ended == "user"
    assert efforts == [pytest.approx(search.FINAL_EFFORT)]


def test_a_guard_that_fires_is_told() -> None:
    """A plan in so short a time, or an error that says how to let the search finish."""
    options = SearchOptions(batch_size=32, time_limit_s=1e-9)
    try:
        plan = search_plan(mlp(4, 1024), find_cluster("summit", gpus=4), options)
    except SearchLimit as error:
        assert "--time-limit" in str(error)
    else:
        assert plan.provenance.ended == "clock"
        assert not check_plan(plan).violations
