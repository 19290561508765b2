"""compile_loop: loops over arrays, compiled by numba when they are first called.

A loop is plain Python that numba understands. Importing it costs nothing; its first call imports
numba and compiles it, with the functions of its module that it calls, or finds it compiled on disk.
Both ways give the same numbers to the last bit, so that a caller with little to do may take
`loop.plain`, on lists, which are faster there than arrays. NUMBA_DISABLE_JIT=1 runs everything
plainly, for a debugger.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


class Loop:
    """A function in two forms: `plain`, and compiled when it is called."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain
        functools.update_wrapper(self, plain)

    def __call__(self, *args: Any) -> Any:
        return self.compiled(*args)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        """The compiled form."""
        assert isinstance(self.plain, FunctionType)
        return _compile(self.plain)


def compile_loop(function: Callable[..., Any]) -> Loop:
    """Make a loop of a function."""
    return Loop(function)


@functools.cache
def _compile(function: FunctionType) -> Callable[..., Any]:
    import numba

    # numba knows the functions that a loop calls in their compiled form only.
    called = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    helpers = {
        name: _compile(each) for name, each in called.items() if isinstance(each, FunctionType)
    }
    bound = FunctionType(function.__code__, {**function.__globals__, **helpers}, function.__name__)
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(cache=True)(bound)
    except RuntimeError:  # Neither the package's folder nor a home can be written.
        compiled = numba.njit()(bound)
    return compiled
