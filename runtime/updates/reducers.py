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
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from graphplan_runtime.messages.buckets import list_runs
from graphplan_runtime.messages.queues import Work
from graphplan_runtime.messages.transport import Group, Transport


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """The place of a gradient in its bucket."""

    parameter: torch.Tensor
    bucket: Bucket
    start: int
    view: torch.Tensor | None = None
    """What the gradient must be to lie in the bucket; None before an update's first micro-batch."""
    is_complete: bool = False
    """Whether nothing more will be added to it."""


class Bucket:
    """Gradients that are reduced together."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.slots: list[Slot] = []
        self.num_elements = 0
        for each in parameters:
            self.slots.append(Slot(each, self, self.num_elements))
            self.num_elements += each.numel()
        self.dtype = parameters[0].dtype
        self.flat: torch.Tensor | None = None
        self.num_missing = len(self.slots)


class Reducer:
    """Told of gradients by hooks of autograd, between `begin` and `end` of a task."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        group: Group,
        transport: Transport,
        *,
        bucket_bytes: int,
    ) -> None:
        """`parameters` are in the order in which their gradients are complete."""
        self.group = group
        self.transport = transport
        self.buckets = [Bucket(run) for run in list_runs(parameters, bucket_bytes)]
        self._slots = {slot.parameter: slot for each in self.buckets for slot in each.slots}
        self._works: list[Work] = []
        """Of the buckets that have been posted."""
        self._is_running = self._is_last = False

    # -- tasks -----------------------------------------------------------------------------------

    def begin(self, *, is_last: bool) -> None:
        """A task starts that contributes; after the last one of an update comes `join`."""
        self._is_running, self._is_last = True, is_last

    def arrive(self, parameter: torch.Tensor) -> None:
        """A task has added all that it has to the gradient of a parameter."""
        if not self._is_running:  # A backward of the user's own.
            return
        slot = self._slots[parameter]
        self._put(slot)
        if self._is_last and not slot.is_complete:
            slot.is_complete = True
            slot.bucket.num_missing -= 1
            self._post_complete()

    def end(self) -> None:
        """The task has run: what has not come by now will not come."""
        self._is_running = False
        if self._is_last:
            self._post_rest()

    def join(self) -> None:
        """Task R: wait until all gradients are sums."""
        self._post_rest()
        for work in self._works:
            work.wait()
        self._works.clear()
        for bucket in self.buckets:
            bucket.flat, bucket.num_missing = None, len(bucket.slots)
            for slot in bucket.slots:
                slot.view, slot.is_complete = None, False

    # -- parts -----------------------------------------------------------------------------------

    def _put(self, slot: Slot) -> None:
        """Move a gradient into its bucket, if it is not there yet."""
        parameter, bucket = slot.parameter, slot.bucket
        gradient = parameter.grad
        if gradient is not None and gradient is slot.view:
            return
        assert len(self._works) <= self.buckets.index(bucket), "a gradient came after its sum"
        if bucket.flat is None:
            bucket.flat = self.transport.queues.take_flat(bucket.num_elements, bucket.dtype)
        part = bucket.flat[slot.start : slot.start + parameter.numel()]
        slot.view = part.view(parameter.shape)
        if gradient is None:
            slot.view.zero_()
        else:
            slot.view.copy_(gradient)
        parameter.grad = slot.view

    def _post_complete(self) -> None:
        """Post the buckets that are complete, in their order."""
        while len(self._works) < len(self.buckets):
            bucket = self.buckets[len(self._works)]
            if bucket.num_missing:
                return
            assert bucket.flat is not None
            self._works.append(self.transport.sum_over(self.group, bucket.flat))

    def _post_rest(self) -> None:
        with torch.no_grad():
            for bucket in self.buckets[len(self._works) :]:
                for slot in bucket.slots:
                    self._put(slot)
                bucket.num_missing = 0
        self._post_complete()
