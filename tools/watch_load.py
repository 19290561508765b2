"""What other programs take of the processors while something is measured.

with Watch() as watch:
    measure()
watch.others  # cores that were busy with others, or taken away by the host of a virtual machine
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time
from pathlib import Path
from types import TracebackType

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CALM_CORES = 0.06


@dataclasses.dataclass(frozen=True)
class Reading:
    """Seconds of all processors since the start of the system, and of this program's own ones."""

    at_s: float
    busy_s: float
    stolen_s: float
    own_s: float


def read_load() -> Reading:
    """Now; children count when they have ended."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _, _, interrupts, soft, stolen = (each / TICKS_PER_S for each in ticks)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Reading(
        at_s=time.monotonic(),
        busy_s=user + nice + system + interrupts + soft,
        stolen_s=stolen,
        own_s=sum(each.ru_utime + each.ru_stime for each in used),
    )


class Watch:
    """Watches from the first line of a block to its end."""

    others = 0.0

    def __enter__(self) -> Watch:
        self._start = read_load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        start, end = self._start, read_load()
        taken_s = end.busy_s + end.stolen_s - start.busy_s - start.stolen_s
        self.others = (taken_s - end.own_s + start.own_s) / (end.at_s - start.at_s)


def wait_calm(limit_s: float) -> None:
    """Wait until other programs leave the processors alone for a second, at most so long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with Watch() as watch:
            time.sleep(1.0)
        if watch.others < CALM_CORES:
            return
