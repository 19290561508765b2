"""Pulse: what counts as work of a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphplan_runtime.faults.pulse import Pulse

READY = "print('ready', flush=True)\n"
SPIN = READY + "while True: pass"
NEST = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
SLEEP = "import time\n" + READY + "time.sleep(600)"


@pytest.fixture
def start() -> Iterator[Callable[[str], None]]:
    """Starts a process that runs some code until the test ends; returns when it is ready."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def feel_from_outside(seconds: float, work: Callable[[], None]) -> float:
    """The longest quiet that a thread feels while the main thread works.

    Not the last: on a busy machine the main thread waits for a core when its sleep is over.
    """
    pulse, found = Pulse(), [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            found[0] = max(found[0], pulse.feel())

    thread = threading.Thread(target=watch)
    thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        work()
    over.set()
    thread.join()
    return found[0]


def test_a_thread_that_sleeps_is_quiet() -> None:
    """For as long as it sleeps."""
    assert feel_from_outside(1.0, lambda: time.sleep(1.0)) > 0.6


def test_a_thread_that_computes_is_not() -> None:
    """Its processor time grows."""
    assert feel_from_outside(1.0, lambda: None) < 0.5


@pytest.mark.parametrize("code", [SPIN, NEST])
def test_work_of_other_processes_counts(start: Callable[[str], None], code: str) -> None:
    """Those that this one has started, and those that they have started."""
    start(code)
    assert feel_from_outside(1.0, lambda: time.sleep(1.0)) < 0.5


def test_a_process_that_sleeps_does_not_count(start: Callable[[str], None]) -> None:
    """Compilers keep idle processes."""
    start(SLEEP)
    assert feel_from_outside(1.0, lambda: time.sleep(1.0)) > 0.6


def test_where_nothing_is_known_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc, no verdict."""
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert feel_from_outside(0.3, lambda: time.sleep(0.3)) == 0.0
