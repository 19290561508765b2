"""Proposals: how planners and the search talk, without calling each other.

A planner is a generator of drafts. Each draft that it yields is judged by whoever drives it, and
the judgement is what the `yield` returns; so a planner can go by what it has learnt without knowing
who judges, and the search can stop reading whenever it likes:

    planner                                    search (planner/search.py)
    step_s = yield draft   ------ draft ----->  judge it, keep it if it is the best
                           <---- seconds -----  send the judgement, or read no further
    yield None             ------------------>  a sign of life: nothing to judge

What a planner does is counted and fixed by its wish before it starts. It sees no clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence

from graphplan.cost.model import CostModel
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.memory import choose_recompute
from graphplan.partition.pins import apply_pins

Proposals = Generator[Draft | None, float, str]
"""Drafts, and at the end a note for the reader of the plan. What is sent for a draft is what the
objective minimises, infinity when the draft does not fit; for None it is 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """What a planner is asked besides the problem."""

    effort: float = 1.0
    """Counted work, relative to the default amounts."""
    seed: int = 0
    searched: bool = True
    """Whether the orders of the micro-batches are searched for, so that a draft may be taken at
    what a good order makes of it; else they are those of 1F1B."""
    is_step: bool = True
    """Whether judgements are step seconds, so that bounds on the step say something of them."""

    def scale(self, count: int) -> int:
        """So many times the effort, one at least."""
        return max(1, round(self.effort * count))


def offer_parts(cost: CostModel, parts: Sequence[Part]) -> Generator[Draft | None, float, float]:
    """Propose parts as a published planner makes them: with devices exchanged as the pins ask, and
    recomputation where memory asks for it. Its value is the judgement."""
    pinned = apply_pins(cost.problem, parts)
    if pinned is None:
        return math.inf
    return (yield choose_recompute(cost, pinned))
