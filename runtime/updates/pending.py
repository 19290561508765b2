"""Pending: an update that this device has issued and that waits for those of other stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from graphplan_runtime.messages.queues import Work


@dataclasses.dataclass
class Pending:
    """An update whose gradients are complete at some stages of this device."""

    number: int
    stages: set[int] = dataclasses.field(default_factory=set)
    """Those that have issued it."""
    gradients: dict[torch.nn.Parameter, torch.Tensor] = dataclasses.field(default_factory=dict)
    is_unscaled: bool = False
    sums: dict[torch.nn.Parameter, torch.Tensor] = dataclasses.field(default_factory=dict)
    """Of tied weights, over all stages that hold them."""
    finish_sums: Callable[[], None] | None = None
    figures: torch.Tensor | None = None
    """The square of the norm and the number of devices with infinities, of all stages."""
    work: Work | None = None
    is_settled: bool = False
    """Whether all that other stages have to say is here."""

    def list_gradients(self) -> list[torch.Tensor]:
        """What will be applied."""
        return [self.sums.get(each, gradient) for each, gradient in self.gradients.items()]
