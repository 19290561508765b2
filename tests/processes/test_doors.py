"""Nobody else on the machine can end, read or change a run."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphplan.errors import BadInput, RunFailed
from graphplan_runtime.faults.board import check_private
from graphplan_runtime.messages.doors import shut_doors
from tests.processes.test_faults import list_ranks, start_run, write_plan

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def list_ports(pids: list[int]) -> list[tuple[str, int]]:
    """Addresses on which processes listen, from the kernel's own tables."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(path.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.append((address, int(port, 16)))
    return found


def read_addresses(ports: list[tuple[str, int]]) -> set[str]:
    return {socket.inet_ntoa(struct.pack("=I", int(address, 16))) for address, _ in ports}


class Marker:
    """A pickle of it makes a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def list_attacks(marker: Path) -> list[bytes]:
    """What a stranger may send: sequence numbers of gloo, a pickle, a wrong secret, garbage."""
    numbers = [struct.pack("<q", number) + bytes(64) for number in range(8)]
    stored = b"\x00" + struct.pack("<Q", 7) + b"graphplan/failure"
    return [*numbers, pickle.dumps(Marker(marker)), b"secret" * 9, stored, os.urandom(4096)]


def call(port: int, text: bytes, *, calls: list[socket.socket]) -> bool:
    """Try to send something to a port; whether anybody took the call. The call is held open."""
    caller = socket.socket()
    calls.append(caller)
    caller.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        caller.connect(("127.0.0.1", port))
    try:
        caller.send(text)
    except OSError:
        return False
    return True


def count_handles(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def read_steps(run: subprocess.Popen[str], count: int) -> None:
    assert run.stdout is not None
    for _ in range(count):
        assert "loss" in run.stdout.readline()


def test_a_stranger_does_not_reach_a_run(tmp_path: Path) -> None:
    """All ports are on loopback, and shut: 10,000 calls later the run has not noticed anything."""
    plan, marker = write_plan(tmp_path, "none"), tmp_path / "marker"
    run = start_run(plan, "none", "--steps", "100000000")
    try:
        read_steps(run, 2)
        pids = list_ranks(plan)
        ports = list_ports([run.pid, *pids])
        assert len(pids) == 2 and len(ports) >= 4, "gloo listens for every group"
        assert read_addresses(ports) == {"127.0.0.1"}
        before = [count_handles(pid) for pid in pids]
        taken = attack(ports, marker, count=10_000)
        folder = find_folder(pids[0])
        if os.getuid() == 0:  # Nobody else can act as another user.
            knock(folder)
        read_steps(run, 2)
        assert taken == 0
        assert [count_handles(pid) for pid in pids] == before
        assert not marker.exists()
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 130
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline, "the folder is left over"


def find_folder(pid: int) -> Path:
    """Where the ranks of a run meet."""
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    told = environment.partition(b"GRAPHPLAN_RUN_FOLDER=")[2].partition(b"\0")[0]
    return Path(told.decode())


def knock(folder: Path) -> None:
    """Others can neither list nor read nor write what the ranks tell each other."""
    for words in (["ls", f"{folder}"], ["cat", f"{folder}/store"], ["touch", f"{folder}/x"]):
        done = subprocess.run(words, user=NOBODY, capture_output=True, check=False)
        assert b"Permission denied" in done.stderr, done


def attack(ports: list[tuple[str, int]], marker: Path, *, count: int) -> int:
    """Call all ports with everything, again and again; how many calls were taken."""
    taken = 0
    attacks = list_attacks(marker)
    for start in range(0, count, 200):
        calls: list[socket.socket] = []
        for number in range(start, start + 200):
            _, port = ports[number % len(ports)]
            taken += call(port, attacks[number // len(ports) % len(attacks)], calls=calls)
        for each in calls:
            each.close()
    return taken


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(16)
        yield door


def test_only_doors_that_were_opened_inside_are_shut() -> None:
    """A server of the user's own goes on to listen; connections that were made stay."""
    with listening() as other, contextlib.ExitStack() as kept:
        with shut_doors():
            door = kept.enter_context(listening())
            peer = kept.enter_context(socket.create_connection(door.getsockname(), timeout=5))
            inside, _ = door.accept()
            kept.enter_context(inside)
        with pytest.raises(TimeoutError):
            socket.create_connection(door.getsockname(), timeout=0.5)
        socket.create_connection(other.getsockname(), timeout=5).close()
        peer.sendall(b"still here")
        assert inside.recv(64) == b"still here"


def call_as_stranger(port: int) -> int:
    """A process of another user calls and says nothing; its exit code tells whether it heard."""
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        with socket.create_connection(("127.0.0.1", port)) as caller:
            os._exit(0 if caller.recv(1) == b"" else 1)
    return child


@needs_root
def test_a_stranger_who_comes_in_time_is_cut_off() -> None:
    """He hears nothing, and the message names him."""
    with listening() as door, contextlib.ExitStack() as kept:
        with pytest.raises(RunFailed, match=f"user id {NOBODY}"), shut_doors():
            child = call_as_stranger(door.getsockname()[1])
            kept.enter_context(door.accept()[0])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_rank_refuses_a_folder_that_others_can_enter(tmp_path: Path) -> None:
    """What is found there would be believed."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    check_private(private)
    (tmp_path / "link").symlink_to(private)
    with pytest.raises(BadInput, match="not a folder of this user"):
        check_private(tmp_path / "link")
    private.chmod(0o750)
    with pytest.raises(BadInput, match=r"can be entered by others \(mode 750\)"):
        check_private(private)
