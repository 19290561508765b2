"""Losses: every rank learns the loss of a batch without holding up anybody.

The ranks that compute the loss know it long before the last backward ends. In small runs they send
it to every rank, which had posted the receive before the batch; in large ones all ranks add up.
Several batches may be under way: what is told first is heard first.
"""

from __future__ import annotations

import torch

from graphplan_runtime.messages.deliveries import MAX_TAG
from graphplan_runtime.messages.queues import Work
from graphplan_runtime.messages.transport import Transport

MOST_MESSAGES = 64


class LossExchange:
    """`sources` are the ranks that compute parts of the loss."""

    def __init__(self, transport: Transport, sources: tuple[int, ...]) -> None:
        self.transport = transport
        self.sources = tuple(sorted(sources))
        self.is_direct = transport.has_tags and len(sources) * transport.num_ranks <= MOST_MESSAGES

    def open(self) -> BatchLoss:
        """Before a batch: be ready to hear."""
        return BatchLoss(self)


class BatchLoss:
    """The loss of one batch, from all ranks that know a part of it."""

    def __init__(self, exchange: LossExchange) -> None:
        self.exchange = exchange
        self._buffers: dict[int, torch.Tensor] = {}
        self._works: list[Work] = []
        rank, transport = exchange.transport.rank, exchange.transport
        if exchange.is_direct:
            for source in exchange.sources:
                if source != rank:
                    buffer = self._buffers[source] = torch.empty(1, dtype=torch.float64)
                    self._works.append(transport.receive(buffer, source, MAX_TAG))

    def tell(self, own: float) -> None:
        """This rank has computed its part; all ranks must call it, in the order of the batches."""
        transport, rank = self.exchange.transport, self.exchange.transport.rank
        told = torch.tensor([own], dtype=torch.float64)
        if not self.exchange.is_direct:
            self._buffers[rank] = told
            self._works.append(transport.add_figures(told))
        elif rank in self.exchange.sources:
            self._buffers[rank] = told
            others = (other for other in range(transport.num_ranks) if other != rank)
            self._works += [transport.send(told, other, MAX_TAG) for other in others]

    def hear(self) -> float:
        """The loss of the batch, the same on every rank."""
        for work in self._works:
            work.wait()
        self._works.clear()
        return sum(float(self._buffers[source]) for source in sorted(self._buffers))
