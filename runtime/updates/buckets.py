"""Bucket: gradients that are reduced together, or weights that are gathered together, as one flat.

Where replicas share the state of a stage, each of them owns one range of every bucket:

    weights    | d |  c  |      b      | a |          in the order in which gradients are complete
    by slices  |  replica 0  |  replica 1  |.         equal ranges; the last may be padded
    by weights |    c    | a |     b     | d |        sorted by owner; ranges of any size

Slices are right for updates that treat every element by itself, whole weights for all others
(sharing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from graphplan_runtime.messages.buckets import list_runs


class Piece(NamedTuple):
    """What a replica owns of a weight."""

    weight: torch.Tensor
    begin: int
    """Elements of the weight."""
    end: int
    start: int
    """Where it begins in its bucket."""

    @property
    def sizes(self) -> torch.Size:
        """Those of the weight if it is whole."""
        is_whole = self.end - self.begin == self.weight.numel()
        return self.weight.shape if is_whole else torch.Size([self.end - self.begin])

    def take_from(self, whole: torch.Tensor) -> torch.Tensor:
        """The piece of a tensor that is shaped as the weight."""
        return whole.reshape(-1)[self.begin : self.end].view(self.sizes)

    def find_in(self, flat: torch.Tensor) -> torch.Tensor:
        """The piece of a bucket."""
        return flat[self.start : self.start + self.end - self.begin].view(self.sizes)


class Bucket:
    """Weights one after another, and who owns which range of elements."""

    def __init__(
        self, weights: Sequence[torch.Tensor], bounds: Sequence[int] = (), num_elements: int = 0
    ) -> None:
        """`bounds` say where the range of each replica begins, and where the last one ends."""
        self.weights = list(weights)
        self.starts: list[int] = []
        filled = 0
        for each in weights:
            self.starts.append(filled)
            filled += each.numel()
        self.num_elements = max(filled, num_elements)
        self.bounds = tuple(bounds)
        self.dtype = weights[0].dtype

    def cut(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every weight with its part of a flat tensor."""
        for weight, start in zip(self.weights, self.starts, strict=True):
            yield weight, flat[start : start + weight.numel()].view(weight.shape)

    def own_range(self, replica: int) -> slice:
        """The elements of a replica."""
        return slice(self.bounds[replica], self.bounds[replica + 1])

    def list_pieces(self, replica: int) -> Iterator[Piece]:
        """What a replica owns."""
        low, high = self.bounds[replica], self.bounds[replica + 1]
        for weight, start in zip(self.weights, self.starts, strict=True):
            begin, end = max(start, low), min(start + weight.numel(), high)
            if begin < end:
                yield Piece(weight, begin - start, end - start, begin)


def make_buckets(weights: Sequence[torch.Tensor], bucket_bytes: int) -> list[Bucket]:
    """Buckets of weights in the order in which their gradients are complete."""
    return [Bucket(run) for run in list_runs(weights, bucket_bytes)]


def share_by_slices(buckets: Sequence[Bucket], num_replicas: int) -> list[Bucket]:
    """Equal ranges for all replicas, up to padding."""
    found = []
    for each in buckets:
        size = -(-each.num_elements // num_replicas)
        bounds = range(0, (num_replicas + 1) * size, size)
        found.append(Bucket(each.weights, bounds, num_replicas * size))
    return found


def share_by_weights(buckets: Sequence[Bucket], num_replicas: int) -> list[Bucket]:
    """Every weight to the replica that owns least so far, the largest of a bucket first."""
    loads, found = [0] * num_replicas, []
    for each in buckets:
        owned: list[list[torch.Tensor]] = [[] for _ in range(num_replicas)]
        for weight in sorted(each.weights, key=lambda weight: -weight.numel()):
            owner = loads.index(min(loads))
            loads[owner] += weight.numel()
            owned[owner].append(weight)
        bounds = [0]
        for own in owned:
            bounds.append(bounds[-1] + sum(weight.numel() for weight in own))
        found.append(Bucket([weight for own in owned for weight in own], bounds))
    return found
