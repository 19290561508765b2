"""GatheredWeights: whole weights, while they are used, of which every replica holds a part only.

zero 3. A pass over the weights (a forward, or a backward) opens the buckets one after the other, in
the order in which its ops come to them, and the next one while the ops of the present one run:

    forward    gather 2 | ops of 2 | ops of 1 | ops of 0 |       bucket 0 has the last layers
               gather 1 ^    gather 0 ^
    backward   gather 0 | ops of 0 | ops of 1 | ops of 2 |
               gather 1 ^    gather 2 ^

Every pass gathers every bucket once, whatever its ops read, so that all replicas post the same,
also one that has no rows. A bucket is closed after its last reader in a forward; in a backward when
the gradients of all its weights have come and nothing that autograd saved of it is left. Its memory
is free when nobody has a view of it: an op that keeps a weight in another way keeps its memory.

What autograd saves of a weight is a note of where it lies, not the memory (`saving`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from graphplan_runtime.messages.queues import Work
from graphplan_runtime.updates.shards import Shards, hide_weight


class Note:
    """A view of a bucket that autograd keeps for a backward."""

    __slots__ = ("alive", "index", "view")

    def __init__(self, index: int, tensor: torch.Tensor, alive: list[int]) -> None:
        self.index = index
        self.view = (tensor.size(), tensor.stride(), tensor.storage_offset())
        self.alive = alive
        alive[index] += 1

    def __del__(self) -> None:
        self.alive[self.index] -= 1


class GatheredWeights:
    """Opens and closes the buckets of one stage on this replica."""

    def __init__(
        self, shards: Shards, waiting: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self.shards = shards
        self.waiting = waiting
        self.index_by_name = {
            shards.names[weight]: index
            for index, bucket in enumerate(shards.buckets)
            for weight in bucket.weights
        }
        self._order: Sequence[int] = ()
        """Of the pass that runs: buckets that are not posted yet."""
        self._coming: dict[int, tuple[torch.Tensor, Work]] = {}
        self._open: dict[int, torch.Tensor] = {}
        """The memory of buckets."""
        self._missing: list[int] = []
        """In a backward: weights of every bucket whose gradient has not come."""
        self._alive: list[int] = []

    # -- passes ----------------------------------------------------------------------------------

    def count_none(self) -> list[int]:
        """Notes of every bucket before a forward."""
        return [0] * len(self.shards.buckets)

    @contextlib.contextmanager
    def passing(self) -> Iterator[list[int]]:
        """While a forward runs; the count of what autograd saves of its weights."""
        alive = self.count_none()
        self.begin_forward()
        with self.saving(alive):
            yield alive
        self.end()

    @contextlib.contextmanager
    def passing_back(self, alive: list[int]) -> Iterator[None]:
        """While its backward runs, or one half of it."""
        self.begin_backward(alive)
        yield
        self.end()

    def begin_forward(self) -> None:
        """The ops of a forward follow; `end` comes after them."""
        self._order = range(len(self.shards.buckets))[::-1]
        self._missing = []

    def begin_backward(self, alive: list[int]) -> None:
        """The backward of a forward whose notes are counted in `alive`."""
        self._order = range(len(self.shards.buckets))
        self._alive = alive
        self._missing = [len(bucket.weights) for bucket in self.shards.buckets]

    def end(self) -> None:
        """What nobody has asked for is gathered all the same: others gather it."""
        self._post(len(self._order))
        for _, work in self._coming.values():
            with self.waiting():
                work.wait()
        self._coming.clear()
        self._missing = []
        for index in list(self._open):
            self.close(index)

    def arrive(self, weight: torch.Tensor) -> None:
        """The gradient of a weight has come: no op that has one to add will read it again."""
        if self._missing:
            index = self.index_by_name[self.shards.names[weight]]
            self._missing[index] -= 1
            if not self._missing[index] and not self._alive[index]:
                self.close(index)

    # -- buckets ---------------------------------------------------------------------------------

    def open(self, index: int) -> torch.Tensor:
        """Let the weights of a bucket have their values; the memory of the bucket."""
        if index not in self._open:
            if index not in self._coming:
                assert index in self._order, "a bucket is opened twice in a pass"
                self._post(self._order.index(index) + 1)
            flat, work = self._coming.pop(index)
            with self.waiting():
                work.wait()
            self._post(1)
            for weight, part in self.shards.buckets[index].cut(flat):
                weight.data = part
            self._open[index] = flat
        return self._open[index]

    def close(self, index: int) -> None:
        """Give up the memory of a bucket."""
        if self._open.pop(index, None) is not None:
            for weight in self.shards.buckets[index].weights:
                hide_weight(weight)

    # -- autograd --------------------------------------------------------------------------------

    def saving(self, alive: list[int]) -> contextlib.AbstractContextManager[Any]:
        """While a forward runs: autograd saves notes of weights, which are counted."""

        def pack(tensor: torch.Tensor) -> torch.Tensor | Note:
            address = tensor.untyped_storage().data_ptr()
            for index, flat in self._open.items():
                if flat.untyped_storage().data_ptr() == address and flat.dtype == tensor.dtype:
                    return Note(index, tensor, alive)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, self._unpack)

    def _unpack(self, saved: torch.Tensor | Note) -> torch.Tensor:
        if isinstance(saved, Note):
            return self.open(saved.index).as_strided(*saved.view)
        return saved

    # -- parts -----------------------------------------------------------------------------------

    def _post(self, count: int) -> None:
        """Begin to gather the next buckets of the pass."""
        for index in self._order[:count]:
            bucket = self.shards.buckets[index]
            flat = self.shards.transport.queues.take_flat(bucket.num_elements, bucket.dtype)
            flat[bucket.own_range(self.shards.replica)].copy_(self.shards.flats[index])
            work = self.shards.transport.gather_parts(self.shards.group, flat, bucket.bounds)
            self._coming[index] = (flat, work)
        self._order = self._order[count:]
