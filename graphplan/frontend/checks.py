"""Value checks: `if ids.max() >= size: raise …` and `assert …` look at values only to complain.

Such a line decides nothing about the model: where it raises, there is no step. The capture takes it
as passed, which needs no values, and says so. A branch that does anything else is none of these.
"""

from __future__ import annotations

import ast
import functools
import linecache
from pathlib import Path
from types import FrameType

import torch

from graphplan.frontend.places import is_users

_VALIDATING = str(Path(torch.__file__).parent / "distributions")
"""Code of torch that checks the values of its arguments."""


def find_check(frame: FrameType | None) -> tuple[str | None, bool]:
    """The line of the innermost check that is running, and what lets it pass; (None, False) when a
    line of the user's that is none comes first."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path) or path.startswith(_VALIDATING):
            place = f"{path}:{frame.f_lineno}"
            wanted = passes_when(place)
            if wanted is not None:
                return place, wanted
            if is_users(path):
                break
        frame = frame.f_back
    return None, False


def passes_when(place: str | None) -> bool | None:
    """What the values must say for the check at `file:line` to pass; None where there is none."""
    if place is None:
        return None
    path, _, line = place.rpartition(":")
    return next((wanted for spans, wanted in _list_checks(path) if int(line) in spans), None)


@functools.lru_cache(maxsize=64)
def _list_checks(path: str) -> tuple[tuple[range, bool], ...]:
    """The lines of every check of a file, with the outcome that lets it pass."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            wanted = True
        elif isinstance(node, ast.If) and _only_raises(node):
            wanted = False
        else:
            continue
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, wanted = test.operand, not wanted
        if not _mixes(test, wanted):
            lines = range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1)
            found.append((lines, wanted))
    return tuple(found)


def _only_raises(node: ast.If) -> bool:
    return not node.orelse and all(isinstance(each, ast.Raise) for each in node.body)


def _mixes(test: ast.expr, wanted: bool) -> bool:
    """Whether the parts of a test need not all have the outcome that the whole must have."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    if not isinstance(test, ast.BoolOp):
        return False
    joins = isinstance(test.op, ast.And)
    # `a and b` is False as soon as the part that reads values is; `a or b` only when both are.
    return any(_mixes(each, wanted) for each in test.values) or (wanted and not joins)
