"""Losses: every rank learns the loss of the batch without holding up anybody.

The ranks that compute the loss know it long before the last backward ends. In small runs they send
it to every rank, which had posted the receive before the step; in large ones all ranks add up.
"""

from __future__ import annotations

import torch

from graphplan_runtime.deliveries import MAX_TAG
from graphplan_runtime.transport import Transport, Work

MOST_MESSAGES = 64


class LossExchange:
    """`sources` are the ranks that compute parts of the loss."""

    def __init__(self, transport: Transport, sources: tuple[int, ...]) -> None:
        self.transport = transport
        self.sources = tuple(sorted(sources))
        self.is_direct = transport.has_tags and len(sources) * transport.num_ranks <= MOST_MESSAGES
        self._buffers: dict[int, torch.Tensor] = {}
        self._works: list[Work] = []

    def open(self) -> None:
        """Before a step: be ready to hear."""
        if self.is_direct:
            for source in self.sources:
                if source != self.transport.rank:
                    self._buffers[source] = torch.empty(1, dtype=torch.float64)
                    self._works.append(
                        self.transport.receive(self._buffers[source], source, MAX_TAG)
                    )

    def close(self, own: float) -> float:
        """After a step: the loss of the batch, the same on every rank."""
        if not self.is_direct:
            return self.transport.sum_figures([own])[0]
        rank = self.transport.rank
        if rank in self.sources:
            told = self._buffers[rank] = torch.tensor([own], dtype=torch.float64)
            others = (other for other in range(self.transport.num_ranks) if other != rank)
            self._works += [self.transport.send(told, other, MAX_TAG) for other in others]
        for work in self._works:
            work.wait()
        self._works.clear()
        return sum(float(self._buffers[source]) for source in self.sources)
