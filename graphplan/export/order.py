"""Orders of a plan's micro-batches: which they are, and which another runtime would run."""

from __future__ import annotations

from graphplan.nouns.plan import Plan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import COMPUTE_KINDS, Task
from graphplan.schedule.interleaved import order_turns
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.shop import make_shop, name_tasks


def read_order(plan: Plan) -> Schedule:
    """The compute tasks of a plan's program."""
    program = plan.parse_program()
    return Schedule(
        name=plan.provenance.schedule,
        tasks_by_device=tuple(
            tuple(each for each in line if isinstance(each, Task) and each.kind in COMPUTE_KINDS)
            for line in program.instructions_by_device
        ),
    )


def build_order(priced: PricedStages, name: str) -> Schedule:
    """The order that a runtime with this schedule runs, whether it fits the memory or not."""
    if name == "1f1b":
        return build_1f1b(priced)
    shop = make_shop(priced)
    kinds = shop.kinds_for([False] * len(priced.stages))
    return name_tasks(shop, order_turns(shop), kinds, name=name)
