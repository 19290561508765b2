"""Shards: what a replica owns of the weights of its stage, and how all get all of them.

The optimizer of a stage whose replicas share its state (`zero` of the plan) sees parameters of its
own, the *pieces*: parts of the memory in which the replica keeps its ranges of the buckets.

zero 1, 2   every replica holds all weights, which lie in the buckets; after an update each of them
            sends its ranges to the others
zero 3      every replica holds its ranges only; weights are gathered for every task
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from graphplan_runtime.messages.transport import Group, Transport
from graphplan_runtime.updates.buckets import Bucket, Piece

Reshape = Callable[[torch.Tensor], torch.Tensor]


class Shards:
    """The pieces of one replica of a stage."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        group: Group,
        transport: Transport,
        *,
        names: Mapping[torch.Tensor, str],
        keeps_weights: bool,
        by_slices: bool,
    ) -> None:
        """`names` are those of the weights; their memory moves into the buckets."""
        self.buckets = buckets
        self.group = group
        self.transport = transport
        self.replica = group.index(transport.rank)
        self.keeps_weights = keeps_weights
        self.by_slices = by_slices
        """Whether a weight may be divided among several replicas."""
        self.names = names
        self.flats: list[torch.Tensor] = []
        """By bucket: all weights, or the own range of them."""
        self.pieces: dict[str, Piece] = {}
        self.own: dict[str, nn.Parameter] = {}
        """The pieces as the optimizer sees them, by the name of the weight."""
        self._savers = {
            names[piece.weight]: group[replica]
            for bucket in buckets
            for replica in reversed(range(len(group)))
            for piece in bucket.list_pieces(replica)
        }
        for bucket in buckets:
            self._take_bucket(bucket)

    def _take_bucket(self, bucket: Bucket) -> None:
        flat = torch.zeros(bucket.num_elements, dtype=bucket.dtype, device=self.transport.device)
        for weight, part in bucket.cut(flat):
            part.copy_(weight.detach())
        own = bucket.own_range(self.replica)
        if self.keeps_weights:
            for weight, part in bucket.cut(flat):
                weight.data = part
        else:
            flat = flat[own].clone()
            for weight in bucket.weights:
                hide_weight(weight)
        self.flats.append(flat)
        for piece in bucket.list_pieces(self.replica):
            shift = 0 if self.keeps_weights else own.start
            part = piece._replace(start=piece.start - shift).find_in(flat)
            name = self.names[piece.weight]
            self.pieces[name], self.own[name] = piece, nn.Parameter(part)

    def list_pieces(self) -> Iterator[tuple[Piece, nn.Parameter]]:
        """The own pieces."""
        return ((self.pieces[name], parameter) for name, parameter in self.own.items())

    def saver_of(self, name: str) -> int:
        """The device that answers for a weight: the first one that owns some of it."""
        return self._savers[name]

    def send_updates(self) -> None:
        """Give the own ranges, which have been updated, to all replicas; and get theirs."""
        if self.keeps_weights:
            works = [
                self.transport.gather_parts(self.group, flat, bucket.bounds)
                for bucket, flat in zip(self.buckets, self.flats, strict=True)
            ]
            for work in works:
                work.wait()

    def load(self, name: str, whole: torch.Tensor) -> None:
        """Take what this replica owns of a weight's new values."""
        if name in self.own:
            self.own[name].copy_(self.pieces[name].take_from(whole))

    def assemble(
        self, values: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors from what every replica has for its own pieces; all must call it.

        The dtype is that of the weights if none is given. Every tensor is the caller's to copy.
        """
        for bucket in self.buckets:
            flat = torch.zeros(
                bucket.num_elements, dtype=dtype or bucket.dtype, device=self.transport.device
            )
            for piece in bucket.list_pieces(self.replica):
                value = values.get(self.names[piece.weight])
                if value is not None:
                    piece.find_in(flat).copy_(value.view(piece.sizes))
            self.transport.gather_parts(self.group, flat, bucket.bounds).wait()
            for weight, part in bucket.cut(flat):
                yield self.names[weight], part


def hide_weight(weight: torch.Tensor) -> None:
    """Take a weight's memory; whoever reads it sees no number."""
    weight.data = torch.full((), torch.nan, dtype=weight.dtype, device=weight.device).expand(
        weight.shape
    )
