"""What a solver is asked and what it answers; the same for all solvers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from graphplan.nouns.base import Noun
from graphplan.nouns.plan import Bound
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.stages import StageGraph

Evaluate = Callable[[StageGraph], float]
"""Step seconds of a stage graph, infinity when it does not fit; the planner supplies it, so that
solvers need not know schedules or the simulator."""

Progress = Callable[[float, float], None]
"""Called with the best step seconds and the best bound so far."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The options of one solve, the same type for every solver."""

    evaluate: Evaluate
    confirm: Evaluate | None = None
    """A slower and closer evaluation, for what would be the best so far."""
    rehearse: Evaluate | None = None
    """About what the best schedule will take: slow, for the last few candidates."""
    time_limit_s: float = 5.0
    seed: int = 0
    policy: WeightPolicy = dataclasses.field(default_factory=WeightPolicy)
    """What evaluations count copies of the weights by; tells why nothing fits."""
    progress: Progress | None = None
    known: dict[str, Answer] = dataclasses.field(default_factory=dict)
    """Answers of other solvers to the same problem, so that none is asked twice."""
    started_s: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def seconds_left(self) -> float:
        """Time that remains of the limit."""
        return self.time_limit_s - (time.perf_counter() - self.started_s)

    @property
    def share_left(self) -> float:
        """The same as a share of the limit."""
        return self.seconds_left / self.time_limit_s if self.time_limit_s > 0 else 0.0


class Answer(Noun, frozen=True, kw_only=True):
    """A stage graph with its evaluated step time and a bound that no stage graph can beat."""

    solver: str
    stages: StageGraph
    step_s: float
    bound: Bound
    proven: bool = False
    """Whether the solver proved its own objective optimal (not: the step time)."""
    note: str = ""
    alternatives: tuple[StageGraph, ...] = ()
    """Other stage graphs that are nearly as good, best first: another schedule than that of the
    evaluation may make one of them the best."""
    interrupted: bool = False
    """Whether the user ended the search; who asked for this answer should end too."""

    @property
    def gap(self) -> float:
        """step / bound - 1."""
        return self.step_s / self.bound.step_s - 1 if self.bound.step_s else 0.0
