"""Updater: from accumulated gradients to new weights, on this device.

A stage's gradients are reduced over its replicas at its R and applied at its U. Three things need
more than one stage: weights that several stages hold (their gradients are summed over all holders),
clipping by the global norm, and the check for infinite gradients.

flush          they wait until the program of the batch has ended; with clipping or loss scaling all
               updates wait
asynchronous   every U waits for the same update of the other stages: exact, but stages then wait
               for one another
local          as flush, within every replica by itself; the weights are averaged over the replicas
               at the end of every H-th batch
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.buckets import average_tensors, sum_gradients
from graphplan_runtime.holdings import Holdings
from graphplan_runtime.scaling import LossScale
from graphplan_runtime.transport import Group, Transport
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
        optimizer: Optimizers | None,
        scheduler: Schedulers | None = None,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        policy: WeightPolicy | None = None,
    ) -> None:
        self.holdings = holdings
        self.transport = transport
        self.versions_by_stage = versions_by_stage
        self.policy = policy or WeightPolicy()
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
        self.schedulers = {
            stage: scheduler(each) for stage, each in self.optimizers.items() if scheduler
        }
        self.waits = clip_norm is not None or self.loss_scale.dynamic
        check_shared(self.policy, holdings, waits=self.waits)

    @property
    def meets(self) -> bool:
        """Whether updates of one stage wait for those of others."""
        return self.waits or bool(self.holdings.tied)

    def reduce(self, stage: int) -> None:
        """Task R; a stage on one device has one for its tied weights, which wait for the end."""
        group = tuple(sorted(self.holdings.stages.stages[stage].devices))
        if len(group) > 1 and self.policy.name != "local":
            sum_gradients(list(self.parameters.get(stage, {}).values()), group, self.transport)

    def update(self, stage: int) -> None:
        """Task U."""
        if not self.policy.is_synchronous:
            self._update_now(stage)
        elif not self.waits:
            self._apply(stage)

    def finish(self) -> None:
        """What waits until the end of a batch that ends by itself."""
        self._reduce_tied()
        if not self.waits:
            self._apply(TIED)
        else:
            all_finite = self._agree()
            for stage in self.parameters:
                self._apply(stage, skip=not all_finite)
        for scheduler in self.schedulers.values():
            scheduler.step()
        if self.policy.name == "local":
            self._average()

    def _update_now(self, stage: int) -> None:
        """All of an update at its U, without the end of a batch."""
        self._reduce_tied()
        all_finite = self._agree() if self.waits else True
        owners = [each for each in (stage, TIED) if each in self.optimizers]
        optimizers = [self.optimizers[each] for each in owners]
        versions = self.versions_by_stage[stage]
        versions.prepare(optimizers if all_finite else ())
        for owner in owners:
            self._step(owner, skip=not all_finite)
            if owner in self.schedulers:
                self.schedulers[owner].step()
        versions.updated()

    def _average(self) -> None:
        """After every H-th batch, the mean of the replicas' weights."""
        done = max((each.num_updates for each in self.versions_by_stage.values()), default=0)
        if done % self.policy.local_steps:
            return
        by_group: dict[Group, list[torch.Tensor]] = {}
        for named in self.parameters.values():
            for name in sorted(named):
                by_group.setdefault(self.holdings.devices_of(name), []).append(named[name])
        for group, parameters in sorted(by_group.items()):
            if len(group) > 1:
                average_tensors(parameters, group, self.transport)

    def _reduce_tied(self) -> None:
        tied = self.parameters.get(TIED, {})
        by_group: dict[Group, list[torch.Tensor]] = {}
        for name in sorted(tied):
            group = self.holdings.devices_of(name)
            if self.policy.name == "local":
                group = self.holdings.replica_group(name, self.transport.rank)
            by_group.setdefault(group, []).append(tied[name])
        for group, parameters in sorted(by_group.items()):
            if len(group) > 1:
                sum_gradients(parameters, group, self.transport)

    def _agree(self) -> bool:
        """Unscale and clip over all stages; whether all gradients may be used.

        Under `local` every replica has a norm of its own.
        """
        gradients = self._list_gradients()
        if self.loss_scale.value != 1.0 and gradients:
            torch._foreach_div_(gradients, self.loss_scale.value)
        is_local = self.policy.name == "local"
        replica = self.holdings.replica_of(self.transport.rank) if is_local else 0
        squares = [0.0] * (self.holdings.num_replicas if is_local else 1)
        square = self._sum_own_squares()
        finite = math.isfinite(square)
        squares[replica] = square if finite else 0.0
        *squares, num_bad = self._sum_figures([*squares, float(not finite)])
        all_finite = num_bad == 0
        if all_finite or not self.loss_scale.dynamic:
            self._clip(gradients, math.sqrt(squares[replica]) if all_finite else math.nan)
        scaled = self.loss_scale.dynamic
        self.loss_scale.adjust(finite=all_finite)
        return all_finite or not scaled

    def _sum_figures(self, figures: list[float]) -> list[float]:
        """Over all ranks, or, in mid-batch, over those that make updates."""
        if self.policy.is_synchronous:
            return self.transport.sum_figures(figures)
        group = self.holdings.updating
        if len(group) == 1:
            return figures
        tensor = torch.tensor(figures, dtype=torch.float64)
        self.transport.sum_over(group, tensor).wait()
        return [float(each) for each in tensor]

    def _answers_for(self, name: str) -> bool:
        """Whether this device's gradient of a weight counts in the norm."""
        rank = self.transport.rank
        if self.policy.name == "local":
            return self.holdings.replica_group(name, rank)[0] == rank
        return self.holdings.owner_of(name) == rank

    def _sum_own_squares(self) -> float:
        """The squares of the gradients for which this device answers."""
        total = 0.0
        for named in self.parameters.values():
            own = [
                parameter.grad
                for name, parameter in named.items()
                if parameter.grad is not None and self._answers_for(name)
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

    def _apply(self, stage: int, *, skip: bool = False) -> None:
        if stage in self.optimizers:
            self._step(stage, skip=skip)
        if stage in self.versions_by_stage and not skip:
            self.versions_by_stage[stage].updated()

    def _step(self, owner: int, *, skip: bool) -> None:
        if not skip:
            self.optimizers[owner].step()
        self.optimizers[owner].zero_grad()

    def _list_gradients(self) -> list[torch.Tensor]:
        return [
            parameter.grad
            for named in self.parameters.values()
            for parameter in named.values()
            if parameter.grad is not None
        ]


def check_shared(policy: WeightPolicy, holdings: Holdings, *, waits: bool) -> None:
    """Refuse what an asynchronous policy cannot do with several stages on a device."""
    if policy.is_synchronous:
        return
    stages = holdings.stages.stages
    by_devices: dict[Group, list[int]] = {}
    for s, stage in enumerate(stages):
        by_devices.setdefault(tuple(sorted(stage.devices)), []).append(s)
    for devices, hosted in by_devices.items():
        if len(hosted) == 1:
            continue
        tied = [n for n in holdings.tied if len({*hosted} & {*holdings.stages_by_weight[n]}) > 1]
        if waits or tied:
            what = f"the tied weight {tied[0]!r}" if tied else "clipping or loss scaling"
            raise InvalidOption(
                f"Under policy {policy.name} {what} makes stages {hosted} of device {devices[0]}"
                " wait for each other.",
                remedy="Use a plan with one stage on a device, or policy flush.",
            )
