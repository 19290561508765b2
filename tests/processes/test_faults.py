"""Whatever happens to a rank, all ranks end, and the first cause is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphplan.files import write_noun
from graphplan.frontend import load_model_file, trace_model_file
from tests.processes.crew import Crew
from tests.processes.plans import plan_by_hand

MODEL = Path(__file__).parent / "faulty.py"
SECONDS = 90
"""Far more than any of these takes; the aim of 15 s after the fault is measured by a tool."""


def write_plan(folder: Path, fault: str, **settings: int) -> Path:
    """Two ranks; the fault lies in stage 1."""
    graph = trace_model_file(load_model_file(MODEL, settings={"fault": fault, **settings})).graph
    plan = plan_by_hand(
        graph,
        {op.name: int(op.name not in ("linear", "tanh")) for op in graph.ops},
        devices=[(0,), (1,)],
        batch_size=8,
        micro_batch_size=2,
    )
    path = folder / "plan.json"
    write_noun(plan, path)
    return path


def start_run(plan: Path, fault: str, *options: str) -> subprocess.Popen[str]:
    """`graphplan run` in a process of its own."""
    command = [sys.executable, "-m", "graphplan", "run", str(plan), str(MODEL)]
    return subprocess.Popen(
        [*command, "--set", f"fault={fault}", "--device", "cpu", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def list_ranks(plan: Path) -> list[int]:
    """Processes that still work on a plan."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "graphplan_runtime" in words and str(plan) in words:
            found.append(int(path.parent.name))
    return found


def wait_until_gone(plan: Path) -> None:
    """All ranks have ended."""
    deadline = time.monotonic() + SECONDS
    while list_ranks(plan):
        assert time.monotonic() < deadline, "ranks are left over"
        time.sleep(0.1)


@pytest.fixture(scope="module", autouse=True)
def none_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test of this file leaves a process behind."""
    yield
    base = tmp_path_factory.getbasetemp()
    assert not [pid for path in base.rglob("plan.json") for pid in list_ranks(path)]


ABOUT_SIX = r"([6-9]|1\d)"
"""Seconds that a timeout of 6 may have grown to before a busy machine looks."""


@pytest.mark.parametrize(
    ("fault", "options", "told"),
    [
        ("raise", [], "ValueError: this stage is broken"),
        ("kill", [], "was killed by SIGKILL"),
        ("hang", ["--hang-timeout", "6"], rf"no progress for {ABOUT_SIX} s"),
        ("stop", ["--hang-timeout", "6"], rf"no sign of life for {ABOUT_SIX} s"),
        ("memory", [], "out of memory"),
        ("infinite", ["--check-finite"], "is not finite after 1F1"),
        ("exit", [], "ended early, with exit code 0"),
    ],
)
def test_first_cause_is_told(tmp_path: Path, fault: str, options: list[str], told: str) -> None:
    """Exit code 1; rank, stage, task and step on the first line; no process is left."""
    plan = write_plan(tmp_path, fault)
    run = start_run(plan, fault, *options)
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, errors
    first = errors.splitlines()[0]
    place = re.search(
        r"rank 1 \(stage 1, task (1\w\d)(, waiting for its tensors)?, step 1\)", first
    )
    assert place is not None, errors
    assert re.search(told, first), errors
    assert not list_ranks(plan)


PHASES = {"hang-build": "building", "hang-data": "reading data", "hang-save": "saving"}


@pytest.mark.parametrize("fault", PHASES)
def test_a_hang_outside_of_a_task_is_seen(tmp_path: Path, fault: str) -> None:
    """In build(), in data(), while saving: nothing works for the rank for six timeouts."""
    plan = write_plan(tmp_path, fault)
    save = ("--save", str(tmp_path / "saved")) if fault == "hang-save" else ()
    # Below that a busy machine, which lets no thread run for so long, is told in its place.
    run = start_run(plan, fault, "--hang-timeout", "2.5", "--steps", "4", *save)
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, errors
    first = errors.splitlines()[0]
    assert f"The run failed at rank 1 ({PHASES[fault]}): no progress for" in first, errors
    assert "commit_fault" in errors, "the stack shows where"
    assert not list_ranks(plan)


def test_a_long_reference_is_no_hang(tmp_path: Path) -> None:
    """Rank 0 trains in one process for longer than the timeout, while the others wait."""
    plan = write_plan(tmp_path, "reference")
    wishes = ("--hang-timeout", "2", "--steps", "4", "--reference", "batch", "--json")
    run = start_run(plan, "reference", *wishes)
    output, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, errors
    assert json.loads(output)["reference"]["largest_loss_difference"] < 1e-5


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    """Limits are measured on a clock that nobody can set."""
    plan = write_plan(tmp_path, "jump")
    run = start_run(plan, "jump", "--steps", "3")
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, errors


FIRST_STEP = 6
"""The call of the faulty op that is in the first step: capturing makes three."""


def test_a_hang_in_the_first_step_is_seen_as_soon(tmp_path: Path) -> None:
    """Nothing works for it, so that it is no kernel that is being compiled."""
    plan = write_plan(tmp_path, "hang", call=FIRST_STEP)
    run = start_run(plan, "hang", "--set", f"call={FIRST_STEP}", "--hang-timeout", "6")
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 1, errors
    assert re.search(r"rank 1 \(stage 1, task 1F\d, step 0\)", errors.splitlines()[0]), errors
    assert re.search(rf"no progress for {ABOUT_SIX} s", errors.splitlines()[0]), errors
    assert not list_ranks(plan)


def test_a_slow_first_step_is_no_hang(tmp_path: Path) -> None:
    """Another process works for the rank longer than the timeout, as a compiler may."""
    plan = write_plan(tmp_path, "compile", call=FIRST_STEP)
    options = ("--set", f"call={FIRST_STEP}", "--hang-timeout", "5", "--steps", "2")
    run = start_run(plan, "compile", *options)
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, errors
    assert not list_ranks(plan)


def test_another_model_on_one_rank(tmp_path: Path) -> None:
    """A rank whose model is not the planned one ends the run as bad input."""
    plan = write_plan(tmp_path, "model")
    run = start_run(plan, "model")
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 2, errors
    assert errors.startswith("Error: The run failed at rank 1 (building): The plan is for the")
    assert not list_ranks(plan)


def disagree() -> str:
    """Rank 1 has another plan than the others."""
    import torch.distributed as dist

    from graphplan.errors import InvalidOption
    from graphplan_runtime.agreement import require_agreement

    require_agreement({"plan": "same", "model": "same"})
    try:
        require_agreement({"model": "same", "plan": str(dist.get_rank() == 1)})
    except InvalidOption as error:
        return error.message
    return "no error"


def test_another_plan_on_one_rank(crew: Crew) -> None:
    """Every rank refuses, and names the rank that differs."""
    told: list[Any] = crew.run(3, disagree)
    assert told == ["Rank 1 has another plan than rank 0."] * 3


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_launcher(tmp_path: Path, death: signal.Signals) -> None:
    """When the launcher is killed or interrupted, no rank goes on."""
    plan = write_plan(tmp_path, "none")
    run = start_run(plan, "none", "--steps", "1000000")
    assert run.stdout is not None and "step" in run.stdout.readline()
    assert len(list_ranks(plan)) == 2
    run.send_signal(death)
    run.communicate(timeout=SECONDS)
    wait_until_gone(plan)
    assert run.returncode == (130 if death == signal.SIGINT else -signal.SIGKILL)
