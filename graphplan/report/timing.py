"""time_plan: the timeline that a plan predicts, from nothing but the plan."""

from __future__ import annotations

from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.simulate.engine import simulate_program


def time_plan(plan: Plan) -> Timeline:
    """Simulate the plan's program on its prices; raises InvalidProgram when it cannot run."""
    return simulate_program(plan.prices, plan.parse_program())
