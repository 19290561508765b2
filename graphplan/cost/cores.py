"""Cores: every rank of a host keeps to its own share of them.

A message wakes the thread that waits for it, and the system likes to wake it on the core of the
thread that sent it. Two ranks then take turns on one core while another one is idle, until the
system notices: in a run of two ranks on two cores that went on for a third of the time. The shares
are parts of all cores that the process may use, so that several runs do not meet on the first ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def list_cores() -> list[int]:
    """The numbers of the cores that this process may use; counted up where nobody says."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def count_cores() -> int:
    """Cores that this process may use."""
    return len(list_cores())


def share_cores(rank: int, num_ranks: int, cores: list[int]) -> list[int]:
    """The part of the cores that is a rank's own; all of them where there are too few."""
    if num_ranks > len(cores):
        return cores
    return cores[rank * len(cores) // num_ranks : (rank + 1) * len(cores) // num_ranks]


def keep_cores(rank: int, num_ranks: int) -> None:
    """Keep this process, and what it will start, to the share of a rank of this host."""
    _use_cores(share_cores(rank, num_ranks, list_cores()))


@contextlib.contextmanager
def kept_cores(rank: int, num_ranks: int) -> Iterator[None]:
    """The same for a while."""
    before = list_cores()
    keep_cores(rank, num_ranks)
    try:
        yield
    finally:
        _use_cores(before)


def _use_cores(cores: list[int]) -> None:
    """All threads of this process; systems that cannot do that are left as they are."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It may have ended, or may not be moved.
            os.sched_setaffinity(int(thread.name), cores)
