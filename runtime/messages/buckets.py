"""Sums of many tensors over a group, in few messages and kept memory.

For what is summed when no backward runs beside it: gradients of tied weights, and weights that are
averaged. The gradients of a stage are summed while they arise (updates/reducers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from graphplan.nouns.buckets import fill_buckets
from graphplan_runtime.messages.transport import Group, Transport


def sum_gradients(
    parameters: Sequence[torch.Tensor], group: Group, transport: Transport, *, bucket_bytes: int
) -> None:
    """Replace every gradient by its sum over the group; where there is none it counts as zero."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [each.grad for each in parameters if each.grad is not None]
        start_sums(gradients, group, transport, bucket_bytes=bucket_bytes)()


def start_sums(
    tensors: Sequence[torch.Tensor], group: Group, transport: Transport, *, bucket_bytes: int
) -> Callable[[], None]:
    """Post the sums of tensors over a group; what is given back waits until they are in place."""
    flats = [(run, _flatten(run, transport)) for run in list_runs(tensors, bucket_bytes)]
    works = [transport.sum_over(group, flat) for _, flat in flats]

    def finish() -> None:
        for (run, flat), work in zip(flats, works, strict=True):
            work.wait()
            _spread(flat, run)

    return finish


def average_tensors(
    tensors: Sequence[torch.Tensor], group: Group, transport: Transport, *, bucket_bytes: int
) -> None:
    """Replace every tensor by its mean over the group."""
    with torch.no_grad():
        start_sums(tensors, group, transport, bucket_bytes=bucket_bytes)()
        torch._foreach_div_(list(tensors), len(group))


def list_runs(tensors: Sequence[torch.Tensor], bucket_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Consecutive tensors of one dtype, a bucket of them at most."""
    start = 0
    for stop in range(1, len(tensors) + 1):
        if stop == len(tensors) or tensors[stop].dtype != tensors[start].dtype:
            part = tensors[start:stop]
            for places in fill_buckets([each.nbytes for each in part], bucket_bytes):
                yield [part[place] for place in places]
            start = stop


def _flatten(run: Sequence[torch.Tensor], transport: Transport) -> torch.Tensor:
    if len(run) == 1 and run[0].is_contiguous():
        return run[0]
    flat = transport.queues.take_flat(sum(each.numel() for each in run), run[0].dtype)
    return torch.cat([each.reshape(-1) for each in run], out=flat)


def _spread(flat: torch.Tensor, run: Sequence[torch.Tensor]) -> None:
    if flat is run[0]:
        return
    parts = torch.split(flat, [each.numel() for each in run])
    torch._foreach_copy_(list(run), [p.view_as(t) for p, t in zip(parts, run, strict=True)])
