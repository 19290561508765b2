"""Updater: from accumulated gradients to new weights, on this device.

A stage's gradients are reduced over its replicas at its R and applied at its U. Three things need
more than one stage and wait until the program of the batch has ended: weights that several stages
hold (their gradients are summed over all holders), clipping by the global norm, and the check for
infinite gradients. If clipping or loss scaling is on, all updates wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphplan_runtime.buckets import sum_gradients
from graphplan_runtime.holdings import Holdings
from graphplan_runtime.losses import LossExchange
from graphplan_runtime.scaling import LossScale
from graphplan_runtime.transport import Transport
from graphplan_runtime.weights import WeightVersions

Optimizers = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Schedulers = Callable[[torch.optim.Optimizer], Any]
TIED = -1
"""In place of a stage: the weights that several stages hold."""


class Updater:
    """Optimizers by stage; parameters that get no gradient are left alone."""

    def __init__(
        self,
        holdings: Holdings,
        transport: Transport,
        *,
        parameters_by_stage: Mapping[int, Mapping[str, torch.nn.Parameter]],
        versions_by_stage: Mapping[int, WeightVersions],
        losses: LossExchange,
        optimizer: Optimizers | None,
        scheduler: Schedulers | None = None,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.holdings = holdings
        self.transport = transport
        self.versions_by_stage = versions_by_stage
        self.losses = losses
        self.clip_norm = clip_norm
        self.loss_scale = loss_scale or LossScale()
        self.parameters: dict[int, dict[str, torch.nn.Parameter]] = {}
        for stage, named in parameters_by_stage.items():
            for name, parameter in named.items():
                if name in holdings.trained:
                    owner = TIED if name in holdings.tied else stage
                    self.parameters.setdefault(owner, {})[name] = parameter
        self.optimizers = {
            stage: optimizer(list(named.values()))
            for stage, named in self.parameters.items()
            if optimizer is not None
        }
        self.schedulers = [scheduler(each) for each in self.optimizers.values() if scheduler]
        self.waits = clip_norm is not None or self.loss_scale.dynamic

    def reduce(self, stage: int) -> None:
        """Task R; a stage on one device has one for its tied weights, which wait for the end."""
        group = tuple(sorted(self.holdings.stages.stages[stage].devices))
        if len(group) > 1:
            sum_gradients(list(self.parameters.get(stage, {}).values()), group, self.transport)

    def update(self, stage: int) -> None:
        """Task U."""
        if not self.waits:
            self._apply(stage)

    def finish(self, loss: float) -> float:
        """What waits until the end of the batch; returns the loss of the whole batch."""
        self._reduce_tied()
        if not self.waits:
            self._apply(TIED)
        else:
            self._apply_all()
        for scheduler in self.schedulers:
            scheduler.step()
        return self.losses.close(loss)

    def _reduce_tied(self) -> None:
        tied = self.parameters.get(TIED, {})
        by_group: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for name in sorted(tied):
            by_group.setdefault(self.holdings.devices_of(name), []).append(tied[name])
        for group, parameters in sorted(by_group.items()):
            if len(group) > 1:
                sum_gradients(parameters, group, self.transport)

    def _apply_all(self) -> None:
        """Clip and check over all stages, then update all of them or none."""
        gradients = self._list_gradients()
        if self.loss_scale.value != 1.0 and gradients:
            torch._foreach_div_(gradients, self.loss_scale.value)
        square = self._sum_own_squares()
        finite = math.isfinite(square)
        figures = self.transport.sum_figures([square if finite else 0.0, float(not finite)])
        all_finite = figures[1] == 0
        if all_finite or not self.loss_scale.dynamic:
            self._clip(gradients, math.sqrt(figures[0]) if all_finite else math.nan)
            for stage in self.parameters:
                self._apply(stage)
        else:
            self._forget()
        self.loss_scale.adjust(finite=all_finite)

    def _sum_own_squares(self) -> float:
        """The squares of the gradients for which this device answers."""
        total = 0.0
        for named in self.parameters.values():
            own = [
                parameter.grad
                for name, parameter in named.items()
                if parameter.grad is not None
                and self.holdings.owner_of(name) == self.transport.rank
            ]
            if own:
                norms = torch.stack([norm.double() for norm in torch._foreach_norm(own)])
                total += float(norms.square().sum())
        return total

    def _clip(self, gradients: Sequence[torch.Tensor], norm: float) -> None:
        if self.clip_norm is None or not gradients:
            return
        # As torch.nn.utils.clip_grad_norm_, which reference runs use.
        factor = self.clip_norm / (norm + 1e-6)
        if not factor >= 1.0:
            torch._foreach_mul_(list(gradients), factor)

    def _apply(self, stage: int) -> None:
        optimizer = self.optimizers.get(stage)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        if stage in self.versions_by_stage:
            self.versions_by_stage[stage].updated()

    def _forget(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def _list_gradients(self) -> list[torch.Tensor]:
        return [
            parameter.grad
            for named in self.parameters.values()
            for parameter in named.values()
            if parameter.grad is not None
        ]
