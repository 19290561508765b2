"""Failure: why a rank ended, told so that the first cause of a failed run can be found."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from pathlib import Path
from typing import Literal

import msgspec

from graphplan.errors import GraphplanError
from graphplan.files import UNREADABLE
from graphplan.nouns.base import Noun

ROOM = "room"
ROOM_BYTES = 1 << 18
Kind = Literal["error", "hang", "signal", "consequence", "cut"]
_ORDER: dict[str, int] = {"error": 0, "hang": 0, "signal": 1, "consequence": 2, "cut": 2}
_LOST = ("gloo", "connection", "socket", "broken pipe", "nccl", "store", "recv", "timed out")


class LostPeer(GraphplanError):
    """A message from or to another rank cannot come any more; its cause lies there."""


class NotFinite(GraphplanError):
    """A loss, an activation or a gradient is infinite or not a number."""


class Failure(Noun, frozen=True, kw_only=True):
    """The end of one rank. A consequence is what a rank meets because another one ended.

    A rank that is cut off from the host of rank 0 does not know what happened there.
    """

    rank: int
    kind: Kind
    place: str
    """Stage, task and step, or the phase of the run."""
    message: str
    remedy: str
    trace: str = ""
    exit_code: int = 1
    time_s: float = 0.0
    """On the monotonic clock of its host, which nobody can set."""

    @property
    def is_cause(self) -> bool:
        """Whether this may explain the failures of others."""
        return self.kind not in ("consequence", "cut")

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.place}): {self.message}\n  {self.remedy}"


def describe_error(error: BaseException, *, rank: int, place: str) -> Failure:
    """What an exception means for the run."""
    kind: Kind = "consequence" if is_consequence(error) else "error"
    message, remedy = explain_error(error)
    return Failure(
        rank=rank,
        kind=kind,
        place=place,
        message=message,
        remedy=remedy,
        trace="" if is_expected(error) or is_out_of_handles(error) else format_trace(error),
        exit_code=error.exit_code if isinstance(error, GraphplanError) else 1,
        time_s=time.monotonic(),
    )


def is_expected(error: BaseException) -> bool:
    """Whether the message alone tells what happened."""
    debugging = bool(os.environ.get("GRAPHPLAN_DEBUG"))
    return isinstance(error, GraphplanError) and not debugging


def format_trace(error: BaseException) -> str:
    """The traceback without the frames of the runtime, which are the same for every task."""
    told = traceback.TracebackException.from_exception(error)
    own = str(Path(__file__).parent)
    frames = [frame for frame in told.stack if not frame.filename.startswith(own)]
    if frames and not os.environ.get("GRAPHPLAN_DEBUG"):
        told.stack = traceback.StackSummary.from_list(frames)
    return "".join(told.format())


def explain_error(error: BaseException) -> tuple[str, str]:
    """What is wrong and what to do, in two sentences."""
    if isinstance(error, GraphplanError):
        return error.message, error.remedy
    text = f"{type(error).__name__}: {error}".split("\nException raised from")[0]
    if is_out_of_memory(error):
        return (
            f"out of memory: {text}",
            "Search again with a smaller --memory or --micro-batch, or with recomputation.",
        )
    if is_out_of_handles(error):
        return (
            "too many open files: this process may not open more of them and of sockets",
            "Raise the limit (ulimit -n 4096) and start again.",
        )
    return text, "The traceback of this rank follows."


def is_out_of_handles(error: BaseException) -> bool:
    """Whether this process may not open more files; gloo tells it in a text only."""
    return "too many open files" in str(error).lower()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the host or on an accelerator."""
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def is_consequence(error: BaseException) -> bool:
    """Whether an error is what one meets when another rank is gone."""
    import torch.distributed as dist

    if isinstance(error, (LostPeer, dist.DistBackendError, dist.DistNetworkError)):
        return True
    if isinstance(error, GraphplanError) or type(error) not in (RuntimeError, dist.DistError):
        return False
    return any(word in str(error).lower() for word in _LOST)


def first_cause(failures: list[Failure]) -> Failure | None:
    """The failure that explains the others: real ones first, then the earliest."""
    ranked = sorted(failures, key=lambda each: (_ORDER[each.kind], each.time_s, each.rank))
    return ranked[0] if ranked else None


def write_failure(failure: Failure, folder: Path, *, rank: int) -> None:
    """Leave what a rank has met or seen in the run's folder; the first word of a rank stays.

    A real cause replaces a mere consequence.
    """
    if has_told(folder, rank) and not failure.is_cause:
        return
    # Two threads of a rank may have something to say.
    building = folder / f"failing-{rank}.{threading.get_ident()}"
    text = msgspec.json.encode(failure)
    # When the disk is full, all but the first who have something to say have no room for it.
    with contextlib.suppress(OSError):
        try:
            building.write_bytes(text)
        except OSError:
            (folder / ROOM).unlink(missing_ok=True)
            building.write_bytes(text)
        building.replace(folder / f"failure-{rank}.json")


def keep_room(folder: Path) -> None:
    """Take some of the disk, to have it when a failure must be told."""
    with (folder / ROOM).open("xb") as file:
        file.write(bytes(ROOM_BYTES))


def has_told(folder: Path, rank: int) -> bool:
    """Whether a rank has left a failure."""
    return (folder / f"failure-{rank}.json").exists()


def tell_agent(failure: Failure) -> None:
    """Leave a failure where torchrun looks for it, if it started this rank."""
    theirs = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if theirs:
        told = {"py_callstack": failure.trace, "timestamp": str(int(time.time()))}
        message = {"message": str(failure), "extraInfo": told}
        Path(theirs).write_bytes(msgspec.json.encode({"message": message}))


def read_failures(folder: Path) -> list[Failure]:
    """What the ranks of this host have left."""
    found = []
    for path in sorted(folder.glob("failure-*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Failure))
        except (*UNREADABLE, OSError):
            continue  # Only the user's own processes write here: one was interrupted.
    return found
