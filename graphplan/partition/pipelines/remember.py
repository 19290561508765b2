"""Remembering what a method has answered, for as long as its object lives.

`functools.lru_cache` on a method would keep the objects themselves alive, with their tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def remember(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """The method, asked once for equal arguments, which must be hashable."""

    @wraps(method)
    def ask(self: Any, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        known = vars(self).setdefault("_known_answers", {})
        key = (method.__name__, args, tuple(sorted(options.items())))
        if key not in known:
            known[key] = method(self, *args, **options)
        return known[key]  # type: ignore[no-any-return]

    return ask
