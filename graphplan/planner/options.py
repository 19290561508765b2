"""SearchOptions: what a user may ask of a search; the same defaults as the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from graphplan.errors import InvalidOption, UnknownName
from graphplan.nouns.policy import POLICY_NAMES
from graphplan.partition import SOLVERS

OBJECTIVES = ("throughput", "latency", "memory")
"""Least step time; least time of one micro-batch through the pipeline; least share of memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of one search."""

    batch_size: int | None = None
    micro_batch_sizes: tuple[int, ...] | None = None
    planner: str = "auto"
    schedule: str = "auto"
    policy: str = "flush"
    objective: str = "throughput"
    optimizer: str = "adam"
    precision: str = "float32"
    mixed: bool = False
    recompute: bool = True
    time_limit_s: float = 5.0
    seed: int = 0
    pins: Mapping[str, int] = dataclasses.field(default_factory=dict)
    keep: tuple[str, ...] = ()
    """Modules, or patterns of modules such as `layers.*`, that are not cut."""
    together: tuple[tuple[str, ...], ...] = ()
    """Groups of ops that are not cut."""
    baselines: bool = True

    def __post_init__(self) -> None:
        if self.planner not in SOLVERS:
            raise UnknownName("planner", self.planner, SOLVERS)
        if self.objective not in OBJECTIVES:
            raise UnknownName("objective", self.objective, OBJECTIVES)
        if self.policy not in POLICY_NAMES:
            raise UnknownName("weight policy", self.policy, POLICY_NAMES)
        if not self.time_limit_s > 0:
            raise InvalidOption(
                f"The time limit is {self.time_limit_s} s.", remedy="Use --time-limit 5."
            )

    def list_changed(self) -> dict[str, str]:
        """The options that differ from their defaults, as text."""
        return {
            field.name: str(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(DEFAULTS, field.name)
        }


DEFAULTS = SearchOptions()
