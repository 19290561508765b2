"""Together: all ranks do something, and know of each other whether it worked.

Files may fail on one rank only; the others must not wait for it in what comes next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from graphplan.errors import GraphplanError
from graphplan_runtime.faults.failures import LostPeer
from graphplan_runtime.faults.status import Status


@contextlib.contextmanager
def together(
    what: str,
    *,
    rank: int,
    num_ranks: int,
    status: Status,
    explain: Callable[[OSError], GraphplanError] | None = None,
) -> Iterator[None]:
    """Do something on every rank, then wait for all; if one fails, no rank goes on."""
    failure: GraphplanError | None = None
    try:
        yield
    except OSError as error:
        if explain is None:
            raise
        failure = explain(error)
    except GraphplanError as error:
        failure = error
    flags = torch.zeros(num_ranks, dtype=torch.int32)
    flags[rank] = failure is not None
    if num_ranks > 1:
        with status.waiting():
            dist.all_reduce(flags)
    if failure is not None:
        raise failure
    if flags.any():
        other = int(flags.argmax())
        raise LostPeer(
            f"rank {other} cannot {what}.", remedy=f"Look for the cause at rank {other}."
        )
