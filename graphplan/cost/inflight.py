"""The in-flight rule: how many samples' forwards run ahead of their backwards at every stage.

GraphPipe (arXiv 2406.17145): a stage x that alternates k_x forwards and k_x backwards of b_x
samples works in units u_x = k_x b_x. A sink keeps one unit in flight; any other stage

    i_x = max over successors j of ceil to a multiple of u_x of (i_j + max(u_x, u_j)).

Where units shrink downstream (u_x > u_j) this starves the successor up to a factor of two, found by
simulation; u_x - u_j more samples mend it. A successor that sends no gradient back only needs to be
fed: i_x >= i_j. With equal units i_x / u_x = h(s) + 1, one more than the longest path of edges to a
sink: the fewest with which free communication is never waited for.

    units  4 -> 2 -> 2:    2 at the sink, 2 + 2 = 4 before it, 4 + 4 + (4 - 2) = 10 -> 12 at the top
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from graphplan.nouns.problem import Floats

Number = Any
"""A number, or an array of them."""


def need_samples(unit: Number, after: Number, unit_after: Number) -> Number:
    """Samples that one successor asks for, before they are rounded up; 0 and 0 for none.

    For numbers and for arrays, and compiled with the loops that call it.
    """
    slack = numpy.maximum(unit - unit_after, 0) * (unit_after > 0)
    return after + numpy.maximum(unit, unit_after) + slack


def step_in_flight(unit: int, after: Floats, units_after: Floats) -> Floats:
    """Samples in flight at a stage for many possible successors; 0 and 0 for none."""
    rounded: Floats = numpy.ceil(need_samples(unit, after, units_after) / unit) * unit
    return rounded


def count_in_flight(
    units: Sequence[int],
    returning: Sequence[Sequence[int]],
    feeding: Sequence[Sequence[int]] | None = None,
) -> list[int]:
    """Samples in flight at every stage of a graph whose edges point to higher numbers.

    `returning` are a stage's successors that send a gradient back, `feeding` the others.
    """
    found = [0] * len(units)
    for x in range(len(units) - 1, -1, -1):
        need = unit = units[x]
        for j in returning[x]:
            need = max(need, int(need_samples(unit, found[j], units[j])))
        for j in feeding[x] if feeding is not None else ():
            need = max(need, found[j])
        found[x] = -(-need // unit) * unit
    return found
