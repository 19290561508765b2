"""LossScale: the factor that keeps fp16 gradients away from zero, agreed on by all ranks.

Doubles after `GROWTH_STEPS` good steps, halves when any rank meets an infinite gradient; that step
changes no weight (arXiv 1710.03740).
"""

from __future__ import annotations

import dataclasses

GROWTH_STEPS = 2000
START = 2.0**16


@dataclasses.dataclass
class LossScale:
    """1 and constant unless `dynamic`."""

    dynamic: bool = False
    value: float = 1.0
    num_good: int = 0
    held: dict[int, float] = dataclasses.field(default_factory=dict)
    """By update: the scale of gradients that began before `value` changed."""

    @classmethod
    def for_float16(cls) -> LossScale:
        """The usual start."""
        return cls(dynamic=True, value=START)

    def value_of(self, update: int) -> float:
        """The scale of the gradients of an update."""
        return self.held.get(update, self.value)

    def hold(self, update: int) -> None:
        """An update has begun with the present value."""
        self.held = {n: value for n, value in self.held.items() if n >= update}
        self.held.setdefault(update, self.value)

    def adjust(self, *, finite: bool) -> None:
        """Learn from one step."""
        if not self.dynamic:
            return
        if not finite:
            self.value, self.num_good = max(self.value / 2, 1.0), 0
            return
        self.num_good += 1
        if self.num_good == GROWTH_STEPS:
            self.value, self.num_good = self.value * 2, 0
