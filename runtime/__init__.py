"""graphplan_runtime: executes a plan on torch.distributed.

`Pipeline` is imported when it is asked for, so that the command line starts without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphplan_runtime.pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> object:
    if name == "Pipeline":
        from graphplan_runtime.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
