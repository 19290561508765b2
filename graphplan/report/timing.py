"""time_plan: the timeline that a plan predicts, from nothing but the plan."""

from __future__ import annotations

from graphplan.errors import InvalidProgram
from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.simulate.engine import simulate_program


def time_plan(plan: Plan) -> Timeline:
    """Simulate the plan's program on its prices; raises InvalidProgram when it cannot run."""
    try:
        program = plan.parse_program()
    except ValueError as error:
        raise InvalidProgram(
            f"The plan's program cannot be read: {error}.",
            remedy="`graphplan check plan.json` tells what else is wrong with it.",
        ) from error
    return simulate_program(plan.prices, program)
