"""Letters: the tensors of one mailbox, some of them still on their way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphplan_runtime.faults.failures import LostPeer
from graphplan_runtime.messages.deliveries import Delivery
from graphplan_runtime.messages.queues import Work
from graphplan_runtime.messages.transport import Transport


class Letters:
    """What has arrived, or been posted, for one task; one place for every slot."""

    __slots__ = ("_copies", "_works", "tensors")

    def __init__(self, num_slots: int) -> None:
        self.tensors: list[torch.Tensor | None] = [None] * num_slots
        self._works: list[tuple[Delivery, Work]] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def receive(
        self, slot: int, delivery: Delivery, transport: Transport, dtype: torch.dtype
    ) -> None:
        """Post the receive of a delivery, into its place where that is possible."""
        if delivery.put is None:
            buffer = self.tensors[slot] = transport.queues.take(delivery.sizes, dtype)
        else:
            buffer = self._place(slot, delivery, dtype, transport)
            if not buffer.is_contiguous():
                target, buffer = buffer, transport.queues.take(delivery.sizes, dtype)
                self._copies.append((target, buffer))
        self._works.append((delivery, transport.receive(buffer, delivery.peer, delivery.tag)))

    def put(
        self, slot: int, delivery: Delivery, transport: Transport, tensor: torch.Tensor
    ) -> None:
        """Take a tensor from another stage of this device."""
        if delivery.put is None:
            self.tensors[slot] = tensor
        else:
            self._place(slot, delivery, tensor.dtype, transport).copy_(tensor)

    def wait(self) -> list[torch.Tensor | None]:
        """All tensors, when the last one is there."""
        for delivery, work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                raise LostPeer(
                    f"{delivery.value!r} does not come from rank {delivery.peer}:"
                    f" {str(error).splitlines()[0]}",
                    remedy=f"Look for the cause at rank {delivery.peer}.",
                ) from error
        for target, buffer in self._copies:
            target.copy_(buffer)
        self._works.clear()
        self._copies.clear()
        return self.tensors

    def _place(
        self, slot: int, delivery: Delivery, dtype: torch.dtype, transport: Transport
    ) -> torch.Tensor:
        """The part of a slot's tensor that a delivery fills."""
        assert delivery.put is not None
        whole = self.tensors[slot]
        if whole is None:
            whole = self.tensors[slot] = transport.queues.take(delivery.slot_sizes, dtype)
        return whole.narrow(*delivery.put)


def add_letters(letters: list[torch.Tensor | None], places: Sequence[int]) -> torch.Tensor | None:
    """The sum of some letters in the given order; the letters stay as they are."""
    if not places:
        return None
    total = letters[places[0]]
    for place in places[1:]:
        total = total + letters[place]  # type: ignore[operator]
    return total
