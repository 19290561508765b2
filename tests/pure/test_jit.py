"""Compiled loops: equal to the plain ones, also where nothing can be kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import pytest

from graphplan.jit import compile_loop


def add_up(count: int) -> int:
    """0 + 1 + 2 + ..."""
    total = 0
    for each in range(count):
        total += each
    return total


def test_a_compiled_loop_is_the_same_function() -> None:
    """Compiled for integers, with the same sum."""
    loop = compile_loop(add_up)
    assert loop(1000) == loop.plain(1000) == add_up(1000)
    compiled: Any = loop.compiled
    assert compiled.signatures


def test_a_loop_compiles_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose user owns neither the package nor a home, numba refuses to cache."""
    njit = numba.njit

    def refuse(*, cache: bool = False, **options: Any) -> Callable[..., Any]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        found: Callable[..., Any] = njit(**options)
        return found

    monkeypatch.setattr(numba, "njit", refuse)
    assert compile_loop(add_up)(1000) == add_up(1000)
