"""run_compiled: pick the engine; both give the same times to the last bit."""

from __future__ import annotations

import importlib.util
from typing import Literal

from graphplan.errors import MissingExtra
from graphplan.simulate.compiled import Compiled, Times
from graphplan.simulate.deadlock import explain_deadlock
from graphplan.simulate.run import run_python

Engine = Literal["auto", "python", "numba"]

WORTH_NUMBA = 400_000
"""Tasks and messages from which on loading numba costs less than it saves."""


def run_compiled(compiled: Compiled, *, engine: Engine = "auto", contention: bool = True) -> Times:
    """The times of a compiled program; raises InvalidProgram when it deadlocks."""
    times = _run(compiled, engine, contention)
    if times.task_end.min(initial=0.0) < 0:
        raise explain_deadlock(compiled, times)
    return times


def _run(compiled: Compiled, engine: Engine, contention: bool) -> Times:
    has_numba = importlib.util.find_spec("numba") is not None
    if engine == "numba" and not has_numba:
        raise MissingExtra("numba", "fast")
    num_events = len(compiled.tasks.stage) + len(compiled.messages.wire)
    if engine == "numba" or (engine == "auto" and has_numba and num_events >= WORTH_NUMBA):
        from graphplan.simulate.run_numba import run_numba

        return run_numba(compiled, contention=contention)
    return run_python(compiled, contention=contention)
