"""Runs that cannot begin or whose output is lost end with one line, at whatever moment."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphplan.errors import InvalidOption, RunFailed
from graphplan_runtime import launch, worker
from graphplan_runtime.faults.failures import (
    ROOM,
    Failure,
    keep_room,
    read_failures,
    write_failure,
)
from graphplan_runtime.launch import Rank, end_ranks, private_folder
from graphplan_runtime.options import RunOptions
from tests.processes.test_faults import (
    MODEL,
    SECONDS,
    list_ranks,
    start_run,
    wait_until_gone,
    write_plan,
)


def test_ctrl_c_before_ranks_have_begun(tmp_path: Path) -> None:
    """While they import torch: no traceback of theirs, and nobody is left."""
    plan = write_plan(tmp_path, "none")
    run = start_run(plan, "none")
    deadline = time.monotonic() + SECONDS
    while len(list_ranks(plan)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == 130
    assert errors.strip() == "Interrupted."
    wait_until_gone(plan)


def test_ctrl_c_twice_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one while ranks are given time to end: they are killed, none is left."""
    process = subprocess.Popen(["sleep", "1000"])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphplan_runtime.launch.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        end_ranks([Rank(0, process, tmp_path)])
    assert process.returncode == -signal.SIGKILL


def test_ctrl_c_while_a_rank_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is known before anybody hears of it, so that it can be ended."""

    def start(*_: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "1000"])
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(launch, "start_rank", start)
    # Who starts the tests in the background may have made them deaf to it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ranks: list[Rank] = []
    plan: Any = SimpleNamespace(program=("0F0",))
    with pytest.raises(KeyboardInterrupt):
        launch.start_ranks(ranks, plan, RunOptions(plan="p"), tmp_path)
    signal.signal(signal.SIGINT, before)
    ranks[0].process.kill()
    assert ranks[0].process.wait() == -signal.SIGKILL


def test_a_full_disk_is_seen_before_ranks_start() -> None:
    """The folder of the run has room for what may have to be told, or there is no run."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RunFailed, match=r"No folder can be made for the run: .*too large"):
            private_folder().__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failure_is_told_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room that was kept is given up for it; without any, nothing worse happens."""
    write = Path.write_bytes

    def fail(path: Path, text: bytes) -> int:
        if (tmp_path / ROOM).exists() or path.name.startswith("failing-1"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text)

    keep_room(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", fail)
    told = Failure(rank=0, kind="error", place="building", message="m", remedy="r")
    write_failure(told, tmp_path, rank=0)
    write_failure(told, tmp_path, rank=1)
    assert read_failures(tmp_path) == [told]


def test_too_few_handles_are_seen_before_gloo_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo ends the process when it finds none; a soft limit is raised as far as is needed."""
    limits, raised = [(20, 20)], []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: raised.append(pair))
    with pytest.raises(InvalidOption, match=r"2 ranks need about 42 .* the limit is 20"):
        worker.require_handles(2)
    limits.append((20, 4096))
    worker.require_handles(16)
    assert raised == [(126, 4096)]
    limits += [(48, 48)]
    worker.require_handles(2)
    limits += [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
    worker.require_handles(2)
    assert len(raised) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"hang_timeout_s": math.nan},
        {"hang_timeout_s": 0.0},
        {"hang_timeout_s": math.inf},
        {"learning_rate": math.nan},
        {"clip_norm": math.nan},
        {"clip_norm": 0.0},
    ],
)
def test_numbers_that_are_none_are_refused(odd: dict[str, Any]) -> None:
    """JSON cannot tell them to the ranks, and no run could go by them."""
    with pytest.raises(InvalidOption, match=r"--hang-timeout|--lr"):
        RunOptions(plan="p", model="m", **odd).check()
    RunOptions(plan="p", model="m").check()


def test_output_that_nobody_can_write(tmp_path: Path) -> None:
    """A full disk under the log of a run: one line, no traceback, and all ranks end."""
    plan = write_plan(tmp_path, "none")
    words = [sys.executable, "-m", "graphplan", "run", str(plan), str(MODEL), "--device", "cpu"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*words, "--set", "fault=none", "--steps", "3"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=SECONDS,
        )
    assert done.returncode == 1
    assert "The output of the run cannot be written: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert not list_ranks(plan)
