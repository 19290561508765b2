"""find_in_time: the dynamic program of max-load under a clock."""

from __future__ import annotations

from collections.abc import Callable

from tools.maxload.cover import Chain, Family, open_search

PATIENCE = 64
"""Down-sets between two looks at the clock."""

IsLate = Callable[[], bool]


class OutOfTime(Exception):
    """The clock ran out inside the dynamic program."""


def find_in_time(family: Family, num_parts: int, target_s: float, is_late: IsLate) -> Chain | None:
    """What `find_chain` finds; raises OutOfTime when `is_late` says so before the end."""
    search = open_search(family, num_parts, target_s)
    if search is None:
        return None
    for first in range(1, search.num_downsets, PATIENCE):
        if is_late():
            raise OutOfTime
        search.reach(first, min(search.num_downsets, first + PATIENCE))
    return search.trace_back()
