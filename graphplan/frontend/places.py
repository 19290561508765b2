"""Places: the line of the user's code behind an error, a node or a call, as `file:line`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType

import torch

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)


def is_users(path: str) -> bool:
    """Whether a source file belongs neither to torch nor to the capture."""
    inside = path.startswith((_TORCH, _OURS))
    return not inside and not path.startswith("<") and "/contextlib.py" not in path


def current_place() -> str | None:
    """The innermost line of the user's code that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def place_of_error(error: BaseException) -> str | None:
    """The innermost line of the user's code that an exception passed."""
    return _innermost(error.__traceback__)


def _innermost(trace: TracebackType | None) -> str | None:
    found = None
    for frame, line in traceback.walk_tb(trace):
        if is_users(frame.f_code.co_filename):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def place_in_text(lines: Iterable[str]) -> str | None:
    """The innermost line of the user's code in a printed stack."""
    found = None
    for line in lines:
        words = line.strip().split('"')
        if len(words) == 3 and words[0] == "File " and is_users(words[1]):
            found = f"{words[1]}:{words[2].removeprefix(', line ').split(',')[0]}"
    return found
