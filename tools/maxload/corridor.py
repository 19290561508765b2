"""Improving a chain of down-sets: many down-sets near each of its borders, searched at once.

For graphs with too many down-sets. Around every border of the chain, ops that can cross it cheaply
are set free: an op beyond the border with all it needs, or an op before it with all that needs it.
The dynamic program over the down-sets of these corridors moves all borders together. Corridors are
as wide as a number of down-sets allows; in every further round the price of crossing is disturbed
at random, so that other ops are free.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from graphplan.nouns.problem import Floats
from graphplan.partition.maxload.maxload import MaxLoad
from tools.maxload.clock import IsLate, OutOfTime, find_in_time
from tools.maxload.cover import Chain, Family
from tools.maxload.prove import NO_BETTER

MAX_DOWNSETS = 1500
"""Down-sets of one corridor."""
WIDEST = 0.5
"""Reach of a corridor to each side, as a share of the chain's value."""
SPREADS = (1.2, 2.5, 5.0)
"""Standard deviations of the logarithm of the disturbance, in turn."""


def improve_chain(
    problem: MaxLoad,
    chain: Chain,
    *,
    num_rounds: int = 40,
    seed: int = 0,
    is_late: IsLate = lambda: False,
) -> Chain:
    """A chain at least as good; ends after so many rounds in a row without a gain."""
    corridors = _Corridors(problem)
    rng = numpy.random.default_rng(seed)
    idle = 0
    while idle < num_rounds and not is_late():
        spread = SPREADS[idle % len(SPREADS)] if idle else 0.0
        scale = numpy.exp(spread * rng.standard_normal(problem.num_ops))
        nearby = list(chain.downsets)
        for border in chain.downsets[:-1]:
            nearby += corridors.list_downsets(border, chain.value_s, scale)
        better = search_family(problem, nearby, chain.value_s, is_late)
        if better is not None and better.value_s < chain.value_s:
            chain, idle = better, 0
        else:
            idle += 1
    return chain


def search_family(
    problem: MaxLoad, downsets: list[int], value_s: float, is_late: IsLate
) -> Chain | None:
    """The best chain of some down-sets if it is better than a value, and time allows."""
    try:
        family = Family(problem, downsets)
        return find_in_time(family, problem.num_parts, value_s * NO_BETTER, is_late)
    except OutOfTime:
        return None


class _Corridors:
    """How much work must move with an op for it to cross a border."""

    def __init__(self, problem: MaxLoad) -> None:
        self.problem = problem
        self.work = numpy.array([op.seconds for op in problem.ops])
        self.above = _close(problem)
        """[op, other]: whether the other is the op itself or comes before it."""
        self.before = [sum(1 << u for u in others) for others in problem.predecessors]
        self.after = [sum(1 << u for u in others) for others in problem.successors]

    def list_downsets(self, border: int, value_s: float, scale: Floats) -> list[int]:
        """Down-sets around a border: the cheapest ops cross it in all ways that edges allow."""
        price = self._price_crossing(border, scale)
        near = [v for v, each in enumerate(price) if each <= WIDEST * value_s]
        found = [border]
        # Of equal prices, the op farther from the border comes later.
        for v in sorted(near, key=lambda v: (price[v], -v if border >> v & 1 else v)):
            if border >> v & 1:
                fresh = [d ^ 1 << v for d in found if not d & self.after[v]]
            else:
                fresh = [d | 1 << v for d in found if not self.before[v] & ~d]
            if len(found) + len(fresh) > MAX_DOWNSETS:
                break
            found += fresh
        return found

    def _price_crossing(self, border: int, scale: Floats) -> list[float]:
        """By op; an op is never cheaper than those that must cross before it."""
        problem = self.problem
        inside = numpy.array([border >> v & 1 for v in range(problem.num_ops)], dtype=bool)
        moved = numpy.where(
            inside, self.above.T @ (self.work * inside), self.above @ (self.work * ~inside)
        )
        price: list[float] = (moved * scale).tolist()
        for v in range(problem.num_ops):
            if not inside[v]:
                outside = (price[u] for u in problem.predecessors[v] if not inside[u])
                price[v] = max(price[v], *outside, 0.0)
        for v in range(problem.num_ops - 1, -1, -1):
            if inside[v]:
                within = (price[u] for u in problem.successors[v] if inside[u])
                price[v] = max(price[v], *within, 0.0)
        return price


def _close(problem: MaxLoad) -> NDArray[numpy.bool_]:
    above = numpy.eye(problem.num_ops, dtype=numpy.bool_)
    for op in range(problem.num_ops):
        for before in problem.predecessors[op]:
            above[op] |= above[before]
    return above
