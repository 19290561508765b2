"""Inner loops compiled by numba, and kept on disk where there is a place for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compile_loop(
    function: Callable[P, R], *, error_model: Literal["python", "numpy"] = "python"
) -> Callable[P, R]:
    """The same function, compiled when it is first called; numba must be installed."""
    import numba

    compiled: Callable[P, R]
    try:
        compiled = numba.njit(cache=True, error_model=error_model)(function)
    except RuntimeError:  # Neither the package's folder nor a home can be written.
        compiled = numba.njit(error_model=error_model)(function)
    return compiled
