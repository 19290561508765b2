"""Launching: one process for each device of a plan on this machine.

Ranks are plain children of this process. They meet in a folder that only the user can enter:
torch's file store for the groups, small files and shared memory for signs of life and failures.
There is no port on which to meet, and nothing that another user could write is read. torchrun,
which is for several machines, has a store that listens and a rendezvous that reads pickles from it
(docs/security.md).

A run is over when all ranks have come to its end, or as soon as one has failed: what is known of
the failure is put up for the others, which end by themselves or, a little later, are killed. The
first cause is found among what they left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from graphplan.errors import InvalidOption, RunFailed
from graphplan.files import read_noun
from graphplan.nouns.plan import Plan
from graphplan_runtime.faults.failures import (
    Failure,
    first_cause,
    has_told,
    keep_room,
    read_failures,
    write_failure,
)
from graphplan_runtime.faults.status import Phase, Place, read_status
from graphplan_runtime.messages.doors import find_loopback
from graphplan_runtime.options import RunOptions

FOLDER = "GRAPHPLAN_RUN_FOLDER"
"""Environment variable: where ranks meet, and leave their status and their failures."""
LAUNCHER = "GRAPHPLAN_LAUNCHER_PID"
"""Environment variable: the process without which a rank has no reason to go on."""
KILL_AFTER_S = 2.0
"""How long ranks have to end by themselves when one has failed."""
LOOK_EVERY_S = 0.05
LOG_LINES = 20
"""Of a rank that ended without a word: how much of its output is told."""


class Ended(BaseException):
    """The launcher was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


@dataclass(frozen=True)
class Rank:
    """A process of the run."""

    number: int
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def place(self) -> Place | None:
        """Where it is or was; None before it has begun."""
        found = read_status(self.folder / f"status-{self.number}")
        return found[0] if found else None

    @property
    def log(self) -> Path:
        """What it prints, unless it is rank 0, whose output is that of the run."""
        return self.folder / f"log-{self.number}"

    def has_failed(self) -> bool:
        """Whether it has ended before the run was over, with whatever exit code."""
        if self.process.poll() is None:
            return False
        return self.process.returncode != 0 or self.place is None or self.place.phase != Phase.DONE


def launch_ranks(options: RunOptions) -> None:
    """Run a plan on this machine; raises RunFailed with the first cause if a rank fails."""
    plan = read_noun(options.plan, Plan)
    check_devices(plan, options)
    if options.bind_cores is None:
        options = msgspec.structs.replace(options, bind_cores=True)
    with signals_raised(), private_folder() as folder:
        ranks: list[Rank] = []
        try:
            start_ranks(ranks, plan, options, folder)
            failed = watch_ranks(plan, ranks)
        except (Ended, KeyboardInterrupt) as error:
            for rank in ranks:  # One that has not begun would tell where its imports were.
                rank.process.send_signal(signal.SIGINT if rank.place else signal.SIGTERM)
            if isinstance(error, KeyboardInterrupt):
                raise
            raise RunFailed(
                f"The run was ended by {error}.", remedy="Start it again, with --resume."
            ) from None
        finally:
            end_ranks(ranks)
        if failed:
            raise explain_failures(plan, ranks, failed)


def check_devices(plan: Plan, options: RunOptions) -> None:
    """Refuse a plan that this machine cannot host, before any process starts."""
    if options.device == "cpu" or options.emulate:
        return
    import torch

    num_ranks = len(plan.program)
    num_here = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if options.device and not num_here:
        raise InvalidOption(
            f"This machine has no {options.device} device.",
            remedy="Use --device cpu, or run where the accelerators are.",
        )
    if 0 < num_here < num_ranks:
        raise InvalidOption(
            f"The plan wants {num_ranks} devices; this machine has {num_here}.",
            remedy=f"Search with --gpus {num_here}, start the run under torchrun on several"
            " machines, or use --device cpu or --emulate.",
        )


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder that only this user can enter, with room for what may have to be told."""
    with contextlib.ExitStack() as kept:
        try:
            made = tempfile.TemporaryDirectory(prefix="graphplan-", ignore_cleanup_errors=True)
            folder = Path(kept.enter_context(made))
            keep_room(folder)
        except OSError as error:
            raise RunFailed(
                f"No folder can be made for the run: {error}.",
                remedy="Free some space, or set TMPDIR to a folder that can be written.",
            ) from error
        yield folder


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Let what usually ends a process end its ranks first."""

    def end(number: int, _: FrameType | None) -> None:
        raise Ended(number)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    # Shells let background jobs ignore it; whoever sends it to this process means it.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let no signal come between the start of a process and the note of it: nobody would end it."""
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in kinds}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def start_ranks(ranks: list[Rank], plan: Plan, options: RunOptions, folder: Path) -> None:
    """Start all processes; `ranks` holds those that were, whatever happens."""
    num_ranks = len(plan.program)
    num_threads = max(1, (os.cpu_count() or 1) // num_ranks)
    common = {
        "OMP_NUM_THREADS": str(num_threads),
        **os.environ,
        FOLDER: str(folder),
        LAUNCHER: str(os.getpid()),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        # Both libraries would listen where the name of the host leads them.
        "GLOO_SOCKET_IFNAME": find_loopback(),
        "NCCL_SOCKET_IFNAME": find_loopback(),
    }
    words = [sys.executable, "-m", "graphplan_runtime", msgspec.json.encode(options).decode()]
    for number in range(num_ranks):
        own = {"RANK": str(number), "LOCAL_RANK": str(number)}
        try:
            with signals_held():
                ranks.append(Rank(number, start_rank(words, common | own, folder, number), folder))
        except OSError as error:
            raise RunFailed(
                f"Rank {number} of {num_ranks} cannot be started: {error}.",
                remedy="Raise the limits of this user (ulimit -u, ulimit -n), or use fewer ranks.",
            ) from error


def start_rank(
    words: list[str], environment: dict[str, str], folder: Path, number: int
) -> subprocess.Popen[bytes]:
    """One process, in a session of its own: Ctrl-C reaches the launcher, which ends the ranks."""
    with (folder / f"log-{number}").open("wb") as log:
        return subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log if number else None,
            stderr=log if number else None,
            start_new_session=True,
        )


def watch_ranks(plan: Plan, ranks: list[Rank]) -> list[Failure]:
    """Wait until all ranks have come to the end of the run, or one has failed.

    Returns what can be said of those that ended: nothing when all is well.
    """
    while not any(rank.has_failed() for rank in ranks):
        if all(rank.process.returncode == 0 for rank in ranks):
            return []
        time.sleep(LOOK_EVERY_S)
    ended = [rank for rank in ranks if rank.has_failed()]
    failures = [describe_exit(plan, rank) for rank in ended]
    for rank, failure in zip(ended, failures, strict=True):
        # A rank that was killed has told nobody: the others would wait for it, and wonder.
        if not has_told(rank.folder, rank.number):
            write_failure(failure, rank.folder, rank=rank.number)
    return failures


def end_ranks(ranks: list[Rank]) -> None:
    """Let ranks end by themselves, then kill what still runs.

    A stopped process, or one in a driver's hands, hears nothing else. Who presses Ctrl-C again does
    not want to wait.
    """
    deadline = time.monotonic() + KILL_AFTER_S
    try:
        while time.monotonic() < deadline and any(rank.process.poll() is None for rank in ranks):
            time.sleep(LOOK_EVERY_S)
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
        for rank in ranks:
            rank.process.wait()


def explain_failures(plan: Plan, ranks: list[Rank], ended: list[Failure]) -> RunFailed:
    """The first cause of a failed run, from what the ranks left behind.

    `ended` is what is known of them when nothing could be left.
    """
    cause = first_cause(read_failures(ranks[0].folder) or ended)
    assert cause is not None
    place = ranks[cause.rank].place if cause.kind == "hang" else None
    if place is not None:  # More recent than what others last heard of the rank.
        line = plan.parse_program().instructions_by_device[cause.rank]
        cause = msgspec.structs.replace(cause, place=place.describe(line))
    where = f"rank {cause.rank} ({cause.place})"
    remedy = cause.remedy + (f"\n\n{cause.trace.rstrip()}" if cause.trace else "")
    return RunFailed(
        f"The run failed at {where}: {cause.message}", remedy=remedy, exit_code=cause.exit_code
    )


def describe_exit(plan: Plan, rank: Rank) -> Failure:
    """What can be said of a rank that ended without a word."""
    line = plan.parse_program().instructions_by_device[rank.number]
    code, place = rank.process.returncode, rank.place
    message, remedy = f"ended early, with exit code {code}", "Look for what ends the process."
    if code < 0:
        message = f"was killed by {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        remedy = "Nobody but the system or a user sends it: look for the out-of-memory killer."
    elif text := read_end(rank.log):
        remedy = f"The end of what it printed:\n{text}"
    return Failure(
        rank=rank.number,
        kind="signal",
        place=place.describe(line) if place else "starting",
        message=message,
        remedy=remedy,
        time_s=time.monotonic(),
    )


def read_end(log: Path) -> str:
    """The last lines of a file, empty when there is none."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LOG_LINES:])
