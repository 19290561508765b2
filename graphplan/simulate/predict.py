"""predict_makespan: the contention-free longest path, for search loops.

Messages take their time and latency but never wait for each other, so the result is a lower bound
of `simulate_program`'s makespan, and equal to it when no channel is asked for two messages at once.
"""

from __future__ import annotations

from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule
from graphplan.simulate.choose import Engine, run_compiled
from graphplan.simulate.compile import compile_program, compile_schedule


def predict_makespan(
    priced: PricedStages, order: Program | Schedule, *, engine: Engine = "auto"
) -> float:
    """Seconds until the last task ends; a schedule counts as lowered ideally, without updates."""
    compiled = (
        compile_program(priced, order)
        if isinstance(order, Program)
        else compile_schedule(priced, order)
    )
    times = run_compiled(compiled, engine=engine, contention=False)
    return float(times.task_end.max(initial=0.0))
