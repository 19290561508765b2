"""Pulse: whether a rank does anything at all.

A task that takes long is not a task that hangs: kernels are compiled in the first step, by this
process or by others that it starts. All of that takes processor time, or waits for a disk. A rank
that waits for no message and for which nothing runs on any core does not come back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

LEAST_SHARE = 0.05
"""Of a core: what counts as work; threads that only wait for messages take less."""
BUSY = ("R", "D")
"""States of a thread that runs, would run if it had a core, or waits for a disk."""


class Pulse:
    """Looks at this process whenever `feel` is called; Linux only, elsewhere always at work."""

    def __init__(self) -> None:
        self._is_known = Path("/proc/self/stat").exists()
        self._main = threading.main_thread().native_id
        self._felt_s = self._worked_at_s = time.monotonic()
        self._processor_s = time.process_time()
        self._own_s = 0.0
        """Processor time of looking, which is no work of the rank."""

    def feel(self) -> float:
        """For how many seconds nothing has worked."""
        started_s = time.thread_time()
        now_s, processor_s = time.monotonic(), time.process_time() - self._own_s
        share = (processor_s - self._processor_s) / max(now_s - self._felt_s, 1e-9)
        self._felt_s, self._processor_s = now_s, processor_s
        if share > LEAST_SHARE or not self._is_known or self._is_busy():
            self._worked_at_s = now_s
        self._own_s += time.thread_time() - started_s
        return now_s - self._worked_at_s

    def _is_busy(self) -> bool:
        """The main thread or a process that this one has started, directly or not."""
        own = Path(f"/proc/self/task/{self._main}/stat")
        return any(_read_state(path) in BUSY for path in (own, *_list_descendants()))


def _list_descendants() -> Iterator[Path]:
    """The `stat` files of all processes below this one."""
    waiting = [Path("/proc/self")]
    while waiting:
        for children in waiting.pop().glob("task/*/children"):
            with contextlib.suppress(OSError):
                for pid in children.read_text().split():
                    waiting.append(Path("/proc", pid))
                    yield waiting[-1] / "stat"


def _read_state(path: Path) -> str:
    """The letter behind the name, which may hold anything; "" for a process that has ended."""
    try:
        return path.read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
