"""SearchOptions: what a user may ask of a search; the same defaults as the command line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import get_args

from graphplan.errors import InvalidOption, UnknownName
from graphplan.nouns.policy import POLICY_NAMES, DirectionForm, PolicyName, WeightPolicy
from graphplan.nouns.problem import Recompute
from graphplan.nouns.schedule import SCHEDULES
from graphplan.nouns.stages import ZERO_LEVELS, StageGraph, ZeroLevel
from graphplan.nouns.training import OptimizerName, Precision
from graphplan.partition import PLANNERS

OBJECTIVES = ("throughput", "latency", "memory")
"""Least step time; least time of one micro-batch through the pipeline; least share of memory."""


EXECUTED_LEVELS: tuple[ZeroLevel, ...] = (0, 1, 2, 3)
"""Levels of ZeRO that our runtime executes; others are planned for when they are asked for."""
LEAST_EFFORT, MOST_EFFORT = 0.01, 1000.0
PLANNER_NAMES = ("auto", *PLANNERS)
"""auto: all that is worth asking for the problem, and moves from the best of their drafts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of one search."""

    batch_size: int | None = None
    micro_batch_sizes: tuple[int, ...] | None = None
    planner: str = "auto"
    schedule: str = "auto"
    policy: str = "flush"
    accumulate: int | None = None
    """Micro-batches of one update without a drain; None: the batch for 2bw, one for others."""
    local_steps: int = 1
    """Batches between two averagings under policy local."""
    direction: str = "optimizer"
    """What predict and spectrain extrapolate along: `optimizer` or `displacement`."""
    objective: str = "throughput"
    optimizer: str = "adam"
    precision: str = "float32"
    mixed: bool = False
    zero: str = "auto"
    """What replicas share (ZeRO): `0` to `3`, or for every stage what is fastest and fits."""
    recompute: str = "auto"
    """Whether stages recompute their activations: `none`, `auto` or `full`."""
    effort: float = 1.0
    """Counted work of the search: 4 means about four times the default's."""
    time_limit_s: float | None = None
    """A guard: the clock ends the search after so many seconds, and the plan says so."""
    seed: int = 0
    pins: Mapping[str, int] = dataclasses.field(default_factory=dict)
    keep: tuple[str, ...] = ()
    """Modules, or patterns of modules such as `layers.*`, that are not cut."""
    together: tuple[tuple[str, ...], ...] = ()
    """Groups of ops that are not cut."""
    baselines: bool = True

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("planner", self.planner, PLANNER_NAMES),
            ("schedule", self.schedule, SCHEDULES),
            ("objective", self.objective, OBJECTIVES),
            ("weight policy", self.policy, POLICY_NAMES),
            ("direction", self.direction, get_args(DirectionForm)),
            ("optimizer", self.optimizer, get_args(OptimizerName)),
            ("precision", self.precision, get_args(Precision)),
            ("recomputation", self.recompute, get_args(Recompute)),
            ("level of ZeRO", self.zero, ("auto", *map(str, ZERO_LEVELS))),
        ):
            if name not in known:
                raise UnknownName(kind, name, known)
        if self.policy != "flush" and self.zero not in ("auto", "0"):
            raise InvalidOption(
                f"Policy {self.policy} keeps weights whole on every replica, without ZeRO.",
                remedy="Use --zero 0, or --policy flush.",
            )
        if min(self.local_steps, self.accumulate or 1) < 1:
            raise InvalidOption(
                "Updates take at least one micro-batch, and averagings one batch.",
                remedy="Use --accumulate 1 and --local-steps 1, or more.",
            )
        if not self.make_policy().is_synchronous and self.schedule != "auto":
            raise InvalidOption(
                f"Policy {self.policy} has an order of its own, not schedule {self.schedule}.",
                remedy="Leave out --schedule, or use --policy flush.",
            )
        if not LEAST_EFFORT <= self.effort <= MOST_EFFORT:
            raise InvalidOption(
                f"The effort is {self.effort:g}.",
                remedy=f"Use --effort 1, or another number from {LEAST_EFFORT:g} to"
                f" {MOST_EFFORT:g}.",
            )
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise InvalidOption(
                f"The time limit is {self.time_limit_s} s.",
                remedy="Leave it out: the search ends by itself; or use --time-limit 60.",
            )

    @property
    def policy_name(self) -> PolicyName:
        """The weight policy; it is one, as the options have been checked."""
        return self.policy  # type: ignore[return-value]

    @property
    def direction_form(self) -> DirectionForm:
        """The direction; it is one, as the options have been checked."""
        return self.direction  # type: ignore[return-value]

    @property
    def zero_levels(self) -> tuple[ZeroLevel, ...]:
        """The levels of ZeRO among which every stage with replicas may choose."""
        if self.policy != "flush":
            return (0,)
        return EXECUTED_LEVELS if self.zero == "auto" else (ZERO_LEVELS[int(self.zero)],)

    @property
    def recompute_choice(self) -> Recompute:
        """Whether stages recompute; it is a choice, as the options have been checked."""
        return self.recompute  # type: ignore[return-value]

    def make_policy(self) -> WeightPolicy:
        """The weight policy, without warm-ups."""
        return WeightPolicy(
            name=self.policy_name,
            accumulate=self.accumulate or 1,
            local_steps=self.local_steps,
            direction=self.direction_form,
        )

    def count_update(self, count: int) -> int:
        """Micro-batches of one update, of the `count` of a batch."""
        return self.accumulate or (count if self.policy == "2bw" else 1)

    def streams(self, stages: StageGraph) -> bool:
        """Whether batches of these stages follow one another without a drain.

        2bw has nothing to double-buffer without a pipeline and is flush there.
        """
        if self.policy == "2bw" and not stages.edges:
            return False
        return not self.make_policy().is_synchronous

    def with_policy(self, name: PolicyName) -> SearchOptions:
        """The same options for another policy, with its defaults."""
        return dataclasses.replace(
            self, policy=name, schedule="auto", accumulate=None, local_steps=1
        )

    def list_changed(self) -> dict[str, str]:
        """The options that differ from their defaults, as text."""
        return {
            field.name: str(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(DEFAULTS, field.name)
        }


DEFAULTS = SearchOptions()
