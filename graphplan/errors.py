"""The errors of graphplan: one tree, every leaf with a remedy.

GraphplanError
├── BadInput              exit code 2: something the user gave is wrong
│   ├── InvalidFile       a plan, graph, table or cluster file that cannot be read
│   ├── InvalidOption     an option or argument with an impossible value
│   ├── UnknownName       a cluster, GPU, planner … that does not exist ("did you mean")
│   ├── ModelFileError    a model file without build(), whose build() raises, …
│   ├── CaptureError      a model that cannot become an op graph
│   ├── CutError          an op -> stage map that is not a legal cut
│   └── InvalidProgram    a program that cannot run: a missing transfer, a deadlock, …
├── NoFeasiblePlan        exit code 1: nothing fits, with what would make it fit
├── SearchLimit           exit code 1: the solver's budget does not suffice for this graph
├── CheckFailed           exit code 1: the referee found a broken rule
├── RunFailed             exit code 1: a rank of a training run ended, with the first cause
└── MissingExtra          exit code 2: an optional package is needed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GraphplanError(Exception):
    """Base of all errors: what is wrong, with the numbers, and what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}"


class BadInput(GraphplanError):
    """Something the user gave is wrong."""

    exit_code = 2


class InvalidFile(BadInput):
    """A file of ours that cannot be read, or does not say what it must."""


class InvalidOption(BadInput):
    """An option or argument with an impossible value."""


class UnknownName(BadInput):
    """A name that is not among the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        super().__init__(f"Unknown {kind} {name!r}.", remedy=f"{hint}Known: {', '.join(names)}.")


class ModelFileError(BadInput):
    """A model file that does not offer what graphplan needs."""


class CaptureError(BadInput):
    """A model that cannot become an op graph."""


class CutError(BadInput):
    """An op -> stage map that is not a legal cut."""


class InvalidProgram(BadInput):
    """A program that cannot run to its end."""


class MissingExtra(BadInput):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"This needs the package {package!r}, which is not installed.",
            remedy=f"Install it with: pip install -c constraints.txt 'graphplan[{extra}]'",
        )


class NoFeasiblePlan(GraphplanError):
    """No plan satisfies the memory limits and the user's wishes."""


class SearchLimit(GraphplanError):
    """A solver's budget does not suffice for this graph."""


class RunFailed(GraphplanError):
    """A training run ended before its last step; the message tells the first cause."""

    def __init__(self, message: str, *, remedy: str, exit_code: int = 1) -> None:
        super().__init__(message, remedy=remedy)
        self.exit_code = exit_code


class CheckFailed(GraphplanError):
    """The referee found a broken rule."""
