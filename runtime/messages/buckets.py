"""Buckets: sum many gradients over a group in few messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from graphplan_runtime.messages.transport import Group, Transport

BUCKET_BYTES = 32 << 20


def sum_gradients(parameters: Sequence[torch.Tensor], group: Group, transport: Transport) -> None:
    """Replace every gradient by its sum over the group; where there is none it counts as zero."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        start_sums([each.grad for each in parameters if each.grad is not None], group, transport)()


def start_sums(
    tensors: Sequence[torch.Tensor], group: Group, transport: Transport
) -> Callable[[], None]:
    """Post the sums of tensors over a group; what is given back waits until they are in place."""
    buckets = [(bucket, _flatten(bucket)) for bucket in fill_buckets(tensors)]
    works = [transport.sum_over(group, flat) for _, flat in buckets]

    def finish() -> None:
        for (bucket, flat), work in zip(buckets, works, strict=True):
            work.wait()
            _spread(flat, bucket)

    return finish


def average_tensors(tensors: Sequence[torch.Tensor], group: Group, transport: Transport) -> None:
    """Replace every tensor by its mean over the group."""
    with torch.no_grad():
        buckets = [(bucket, _flatten(bucket)) for bucket in fill_buckets(tensors)]
        works = [transport.sum_over(group, flat) for _, flat in buckets]
        for (bucket, flat), work in zip(buckets, works, strict=True):
            work.wait()
            flat.div_(len(group))
            _spread(flat, bucket)


def fill_buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Consecutive tensors of one dtype, up to the size of a bucket together."""
    bucket: list[torch.Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        full = num_bytes + tensor.nbytes > BUCKET_BYTES
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(tensor)
        num_bytes += tensor.nbytes
    if bucket:
        yield bucket


def _flatten(bucket: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        return bucket[0]
    return torch.cat([tensor.reshape(-1) for tensor in bucket])


def _spread(flat: torch.Tensor, bucket: Sequence[torch.Tensor]) -> None:
    if flat is bucket[0]:
        return
    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
    torch._foreach_copy_(list(bucket), [p.view_as(t) for p, t in zip(parts, bucket, strict=True)])
