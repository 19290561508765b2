"""Reducer: the gradients of one stage, summed over its replicas while its backward still runs.

Gradients come one by one, the last layer's first; those of a bucket (nouns/buckets.py) lie in one
flat tensor, so that nothing is copied before or after the sum:

    backward   |--- c d ---|--- a b ---|--- e ---|            of the last micro-batch
    bucket 0               >============                      posted as soon as c and d are there
    bucket 1                                     >=======     posted after bucket 0
    R                                            waits -->|

The first micro-batch of an update leaves a gradient where autograd made it: it is copied into the
bucket, and autograd adds those of the other micro-batches to it there. When the last task that
contributes has run, gradients that have not come count as zero. All replicas post the same buckets
in the same order, because they run the same program, also where one of them has no rows.

The memory of a bucket is free when nobody has a view of it, and is taken again for the next update:
gradients that wait for other stages (pending.py) keep theirs.

Where replicas share the state of the stage, each of them wants the sums of its own ranges only:

zero 0      all gradients are summed everywhere
zero 1      each replica gets the sums of its ranges, once for all micro-batches
zero 2, 3   the same in every micro-batch: a bucket is memory that is taken when its first gradient
            comes, and given back when its sum is there, which is added to what the replica has of
            the micro-batches before. At most two buckets are on their way
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

import torch

from graphplan_runtime.messages.queues import Work
from graphplan_runtime.messages.transport import Group, Transport
from graphplan_runtime.updates.buckets import Bucket
from graphplan_runtime.updates.shards import Shards

Waiting = Callable[[], contextlib.AbstractContextManager[None]]
MOST_ON_THEIR_WAY = 2


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """The gradient of a weight, and its place in a bucket."""

    weight: torch.Tensor
    filling: Filling
    start: int
    view: torch.Tensor | None = None
    """What the gradient must be to lie in the bucket; None before it has come."""
    is_complete: bool = False
    """Whether nothing more will be added to it."""


class Filling:
    """A bucket that is being filled with gradients."""

    def __init__(self, bucket: Bucket, place: int) -> None:
        self.bucket = bucket
        self.place = place
        self.slots = [
            Slot(weight, self, start)
            for weight, start in zip(bucket.weights, bucket.starts, strict=True)
        ]
        self.flat: torch.Tensor | None = None
        self.num_missing = len(self.slots)

    def empty(self) -> None:
        """Start again, in other memory."""
        self.flat, self.num_missing = None, len(self.slots)
        for slot in self.slots:
            slot.view, slot.is_complete = None, False


class Reducer:
    """Told of gradients by hooks of autograd, between `begin` and `end` of a task."""

    def __init__(self, buckets: Sequence[Bucket], group: Group, transport: Transport) -> None:
        """The buckets are in the order in which they will be complete."""
        self.group = group
        self.transport = transport
        self.fillings = [Filling(each, place) for place, each in enumerate(buckets)]
        self._slots = {slot.weight: slot for each in self.fillings for slot in each.slots}
        self._works: deque[tuple[Filling, torch.Tensor, Work]] = deque()
        """Of the buckets that are on their way."""
        self._num_posted = 0
        self._is_running = self._is_last = False

    # -- tasks -----------------------------------------------------------------------------------

    def contributes(self, *, is_last: bool) -> bool:
        """Whether a task without rows has a part in this."""
        return is_last

    def begin(self, *, is_last: bool) -> None:
        """A task starts that contributes; after the last one of an update comes `join`."""
        self._is_running, self._is_last = True, is_last

    def arrive(self, weight: torch.Tensor) -> None:
        """A task has added all that it has to the gradient of a weight."""
        if not self._is_running:  # A backward of the user's own.
            return
        slot = self._slots[weight]
        self._put(slot)
        if self._is_last and not slot.is_complete:
            slot.is_complete = True
            slot.filling.num_missing -= 1
            self._post_complete()

    def end(self) -> None:
        """The task has run: what has not come by now will not come."""
        self._is_running = False
        if self._is_last:
            self._post_rest()

    def join(self) -> None:
        """Task R: wait until all gradients are sums."""
        self._post_rest()
        while self._works:
            self._finish_first()
        self._num_posted = 0

    # -- parts -----------------------------------------------------------------------------------

    def _put(self, slot: Slot) -> None:
        """Move a gradient into its bucket, if it is not there yet."""
        weight = slot.weight
        if weight.grad is None or weight.grad is not slot.view:
            weight.grad = self._copy(slot)

    def _copy(self, slot: Slot) -> torch.Tensor:
        """A gradient in its bucket; zero where there is none."""
        filling, gradient = slot.filling, slot.weight.grad
        assert self._num_posted <= filling.place, "a gradient came after its sum"
        if filling.flat is None:
            filling.flat = self._take_flat(filling)
        part = filling.flat[slot.start : slot.start + slot.weight.numel()]
        slot.view = part.view(slot.weight.shape)
        return slot.view.zero_() if gradient is None else slot.view.copy_(gradient)

    def _take_flat(self, filling: Filling) -> torch.Tensor:
        bucket = filling.bucket
        return self.transport.queues.take_flat(bucket.num_elements, bucket.dtype)

    def _post_complete(self) -> None:
        """Post the buckets that are complete, in their order."""
        while self._num_posted < len(self.fillings):
            filling = self.fillings[self._num_posted]
            flat = filling.flat
            if filling.num_missing or flat is None:
                return
            self._num_posted += 1
            filling.empty()
            self._works.append((filling, flat, self._post(filling.bucket, flat)))

    def _post(self, bucket: Bucket, flat: torch.Tensor) -> Work:
        return self.transport.sum_over(self.group, flat)

    def _post_rest(self) -> None:
        with torch.no_grad():
            while self._num_posted < len(self.fillings):
                filling = self.fillings[self._num_posted]
                for slot in filling.slots:
                    if not slot.is_complete:
                        self._put(slot)
                filling.num_missing = 0
                self._post_complete()

    def _finish_first(self) -> None:
        self._works.popleft()[-1].wait()


class SharedReducer(Reducer):
    """zero 1: gradients stay in the buckets, of which each replica gets its own ranges."""

    def __init__(
        self, shards: Shards, group: Group, transport: Transport, *, waiting: Waiting
    ) -> None:
        super().__init__(shards.buckets, group, transport)
        self.shards = shards
        self.waiting = waiting

    def _post(self, bucket: Bucket, flat: torch.Tensor) -> Work:
        return self.transport.sum_parts(self.group, flat, bucket.bounds)

    def _finish_first(self) -> None:
        filling, flat, work = self._works.popleft()
        work.wait()
        for weight in filling.bucket.weights:
            weight.grad = None
        for piece in filling.bucket.list_pieces(self.shards.replica):
            self.shards.own[self.shards.names[piece.weight]].grad = piece.find_in(flat)


class ScatteringReducer(SharedReducer):
    """zero 2 and 3: what remains of a micro-batch are the sums of the own ranges."""

    def __init__(
        self, shards: Shards, group: Group, transport: Transport, *, waiting: Waiting
    ) -> None:
        super().__init__(shards, group, transport, waiting=waiting)
        self._sums: dict[Filling, torch.Tensor] = {}
        """Over the micro-batches so far."""

    def contributes(self, *, is_last: bool) -> bool:
        return True

    def begin(self, *, is_last: bool) -> None:
        super().begin(is_last=True)
        self._num_posted = 0

    def join(self) -> None:
        super().join()
        for filling, total in self._sums.items():
            low = filling.bucket.own_range(self.shards.replica).start
            for piece in filling.bucket.list_pieces(self.shards.replica):
                part = piece._replace(start=piece.start - low).find_in(total)
                self.shards.own[self.shards.names[piece.weight]].grad = part
        self._sums.clear()

    def _post_rest(self) -> None:
        if self._is_last:
            super()._post_rest()
            self._is_last = False

    def _put(self, slot: Slot) -> None:
        assert not slot.is_complete, "a gradient came twice in a task"
        self._copy(slot)
        slot.weight.grad = None

    def _take_flat(self, filling: Filling) -> torch.Tensor:
        while len(self._works) >= MOST_ON_THEIR_WAY:
            with self.waiting():
                self._finish_first()
        return super()._take_flat(filling)

    def _finish_first(self) -> None:
        filling, flat, work = self._works.popleft()
        work.wait()
        own = flat[filling.bucket.own_range(self.shards.replica)]
        if filling in self._sums:
            self._sums[filling] += own
        else:
            total = self.transport.queues.take_flat(own.numel(), own.dtype)
            self._sums[filling] = total.copy_(own)
