"""One run at a time saves into a folder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from graphplan.errors import InvalidOption
from graphplan_runtime.checkpoints.lock import LOCK, Holder, Lock, release_locks

CONTEXT = multiprocessing.get_context("fork")


def hold(folder: Path, pipe: Connection) -> None:
    """Take the lock and keep it."""
    Lock(folder).take(lambda word: None)
    pipe.send("taken")
    time.sleep(1000)


def leave_lock(folder: Path) -> int:
    """The lock of a process that was killed."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=hold, args=(folder, theirs), daemon=True)
    process.start()
    assert ours.recv() == "taken"
    with pytest.raises(InvalidOption, match=rf"in use: process {process.pid} on"):
        Lock(folder).take(pytest.fail)
    process.kill()
    process.join()
    assert process.pid is not None
    return process.pid


def test_a_lock_is_taken_over_when_its_process_is_gone(tmp_path: Path) -> None:
    """With a word; while it lives, others are refused, and it can be released."""
    pid = leave_lock(tmp_path)
    (tmp_path / ".lock.1.2").write_bytes((tmp_path / LOCK).read_bytes())
    words: list[str] = []
    lock = Lock(tmp_path)
    lock.take(words.append)
    assert len(words) == 1 and f"process {pid}" in words[0]
    Lock(tmp_path).take(pytest.fail)  # The same process may save by several pipelines.
    lock.release()
    assert list(tmp_path.iterdir()) == []


def change(**facts: object) -> Callable[[Path], None]:
    """Give a lock another holder."""

    def write(path: Path) -> None:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(holder, **facts)))

    return write


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (change(host="elsewhere", machine="other"), "process .* on elsewhere, which last saved"),
        (change(machine=""), "process .* which last saved"),
        (lambda path: path.write_bytes(b"\xff\0"), "another run"),
        (lambda path: path.write_bytes(b""), "another run"),
    ],
)
def test_a_holder_that_may_live_is_respected(
    tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    """Of another machine, or of whom nothing is known; the remedy is to delete the file."""
    leave_lock(tmp_path)
    damage(tmp_path / LOCK)
    with pytest.raises(InvalidOption, match=told) as caught:
        Lock(tmp_path).take(pytest.fail)
    assert f"rm {tmp_path / LOCK}" in caught.value.remedy


def test_a_process_number_that_was_given_away_again_is_not_the_holder(tmp_path: Path) -> None:
    """It started at another time."""
    leave_lock(tmp_path)
    change(pid=os.getpid(), started="1")(tmp_path / LOCK)
    words: list[str] = []
    lock = Lock(tmp_path)
    lock.take(words.append)
    lock.release()
    assert len(words) == 1


def test_a_zombie_holds_no_lock(tmp_path: Path) -> None:
    """A killed rank whose launcher has not looked yet."""
    code = (
        "import sys, os, signal, pathlib\n"
        "from graphplan_runtime.checkpoints.lock import Lock\n"
        f"Lock(pathlib.Path({str(tmp_path)!r})).take(print)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    words: list[str] = []
    lock = Lock(tmp_path)
    lock.take(words.append)
    lock.release()
    assert child.wait() == -signal.SIGKILL
    assert len(words) == 1


def contend(folder: Path, start: float, pipe: Connection) -> None:
    """Try to take the lock at a moment, and keep it for a while."""
    words: list[str] = []
    lock = Lock(folder)
    while time.time() < start:
        pass
    try:
        lock.take(words.append)
        pipe.send((True, len(words)))
    except InvalidOption:
        pipe.send((False, 0))
    pipe.recv()
    release_locks()


def test_only_one_of_many_takes_a_stale_lock(tmp_path: Path) -> None:
    """However often they all see it at once."""
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        leave_lock(folder)
        pipes, start = [], time.time() + 0.1
        for _ in range(6):
            ours, theirs = CONTEXT.Pipe()
            CONTEXT.Process(target=contend, args=(folder, start, theirs), daemon=True).start()
            pipes.append(ours)
        answers = [pipe.recv() for pipe in pipes]
        assert sum(taken for taken, _ in answers) == 1, answers
        assert max(words for _, words in answers) == 1
        for pipe in pipes:
            pipe.send("end")
