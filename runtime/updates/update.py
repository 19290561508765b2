"""Updater: from accumulated gradients to new weights, on this device.

A stage's gradients are reduced over its replicas at its R and applied at its U. Three things need
more than one stage: weights that several stages hold (their gradients are summed over all holders),
clipping by the global norm, and the check for infinite gradients.

flush          they wait until the program of the batch has ended; with clipping or loss scaling all
               updates wait
asynchronous   a U issues the update of its stage; all stages of a device apply it together when the
               same update of all other stages has been issued too (walks.py says when): exact, but
               stages then wait for one another, except under 2bw
local          as flush, within every replica by itself; the weights are averaged over the replicas
               at the end of every H-th batch
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from graphplan.nouns.buckets import order_gradients
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.training import BUCKET_BYTES
from graphplan_runtime.faults.failures import LostPeer, NotFinite
from graphplan_runtime.messages.buckets import average_tensors, start_sums, sum_gradients
from graphplan_runtime.messages.transport import Group, Transport
from graphplan_runtime.updates.finite import FINITE_REMEDY, is_finite
from graphplan_runtime.updates.holdings import Holdings
from graphplan_runtime.updates.pending import Pending
from graphplan_runtime.updates.reducers import Reducer
from graphplan_runtime.updates.scaling import LossScale
from graphplan_runtime.updates.weights import WeightVersions

Optimizers = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Schedulers = Callable[[torch.optim.Optimizer], Any]
Gradients = Mapping[torch.nn.Parameter, torch.Tensor]
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
        check_finite: bool = False,
        loss_scale: LossScale | None = None,
        policy: WeightPolicy | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.holdings = holdings
        self.transport = transport
        self.versions_by_stage = versions_by_stage
        self.policy = policy or WeightPolicy()
        self.bucket_bytes = bucket_bytes
        self.clip_norm = clip_norm
        self.check_finite = check_finite
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
        # Where batches end by themselves no stage need be updated before all gradients are known.
        self.waits |= check_finite and self.policy.is_synchronous
        self.pending: dict[int, Pending] = {}
        """Updates that a stage of this device has issued and that are not applied yet."""
        self.num_issued = Counter[int]()
        self._updating = [s for s in versions_by_stage if s in holdings.updating_stages]
        self.reducers = {s: self._make_reducer(s) for s in self._find_replicated()}
        """By stage, where replicas share their gradients."""

    @property
    def num_talks(self) -> int:
        """How often stages talk about an update of an asynchronous policy."""
        return 0 if self.policy.is_synchronous else self.waits + bool(self.holdings.tied)

    def _find_replicated(self) -> list[int]:
        stages = self.holdings.stages.stages
        trained = (s for s in self.versions_by_stage if s in self.parameters)
        return [s for s in trained if len(stages[s].devices) > 1 and self.policy.name != "local"]

    def _make_reducer(self, stage: int) -> Reducer:
        named, whole = self.parameters[stage], self.holdings.stages.stages[stage]
        order = [n for n in order_gradients(self.holdings.graph, whole.ops) if n in named]
        parameters = [named[name] for name in order]
        group = tuple(sorted(whole.devices))
        made = Reducer(parameters, group, self.transport, bucket_bytes=self.bucket_bytes)
        self.versions_by_stage[stage].listen(made.arrive, parameters)
        return made

    def reduce(self, stage: int) -> None:
        """Task R; a stage on one device has one for its tied weights, which wait for the end."""
        if stage in self.reducers:
            self.reducers[stage].join()

    def update(self, stage: int) -> None:
        """Task U."""
        if self.num_talks:
            self.issue(stage)
        elif not self.policy.is_synchronous:
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
        """All of an update at its U: no other stage has a say in it."""
        owners = [stage] if stage in self.optimizers else []
        versions = self.versions_by_stage[stage]
        versions.prepare([self.optimizers[each] for each in owners])
        self._step_owners(owners)
        versions.updated()

    def _step_owners(self, owners: Sequence[int], *, skip: bool = False) -> None:
        if self.check_finite and not skip:
            stepped = (each for owner in owners for each in self.parameters[owner].values())
            self._require_finite({p: p.grad for p in stepped if p.grad is not None})
        for owner in owners:
            self._step(owner, skip=skip)
            if owner in self.schedulers:
                self.schedulers[owner].step()

    # -- updates that meet -----------------------------------------------------------------------

    def issue(self, stage: int) -> None:
        """The gradients of a stage's next update are complete."""
        number = self.num_issued[stage]
        self.num_issued[stage] += 1
        pending = self.pending.setdefault(number, Pending(number))
        pending.stages.add(stage)
        self._take_gradients(pending, stage)
        self._post(pending)

    def meet(self, number: int) -> None:
        """Tell this device's part of the norm, in which sums of tied gradients count."""
        pending = self.pending[number]
        if not pending.is_settled:
            self._tell_norm(pending)

    def join(self, number: int) -> None:
        """Apply an update to all stages of this device, when those of all others are issued."""
        pending = self.pending.pop(number)
        self._settle(pending)
        all_finite = self._read(pending) if self.waits else True
        later = {each: each.grad for each in self._list_parameters()}
        for parameter, gradient in pending.gradients.items():
            parameter.grad = pending.sums.get(parameter, gradient)
        optimizers = list(self.optimizers.values())
        for stage in self._updating:
            self.versions_by_stage[stage].prepare(optimizers if all_finite else ())
        self._step_owners(list(self.optimizers), skip=not all_finite)
        for stage in self._updating:
            self.versions_by_stage[stage].updated()
        for parameter, kept in later.items():
            parameter.grad = kept

    def settle(self, num_met: int) -> None:
        """Finish what pending updates exchange, of those that all stages have issued."""
        for pending in self.pending.values():
            if pending.number < num_met:
                self._settle(pending)

    def resume(self, issued: Mapping[int, int], pending: Iterable[Pending]) -> None:
        """Go on with updates that a checkpoint had under way."""
        self.num_issued = Counter(issued)
        self.pending = {each.number: each for each in pending}
        for each in self.pending.values():
            self._post(each)

    def _is_complete(self, pending: Pending) -> bool:
        return pending.stages.issuperset(self._updating)

    def _take_gradients(self, pending: Pending, stage: int) -> None:
        """Put gradients aside, so that those of the next update can be added up.

        Those of a tied weight are complete when all stages of the device that hold it are there.
        """
        if not self.optimizers:
            return
        own = list(self.parameters.get(stage, {}).values())
        for name, parameter in self.parameters.get(TIED, {}).items():
            holders = {*self.holdings.stages_by_weight[name]} & {*self._updating}
            if stage in holders and pending.stages >= holders:
                own.append(parameter)
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        for parameter in own:
            if parameter.grad is not None:
                pending.gradients[parameter], parameter.grad = parameter.grad, None

    def _post(self, pending: Pending) -> None:
        """Tell the other stages as much as can be told now."""
        if not self._is_complete(pending) or pending.is_settled:
            return
        if pending.finish_sums is None:
            pending.finish_sums = self._start_tied(pending)
        if self.num_talks == 1:
            self._tell_norm(pending)

    def _start_tied(self, pending: Pending) -> Callable[[], None]:
        """Sums of tied gradients, beside the gradients: a checkpoint wants these as they are."""
        finishes = []
        for group, parameters in self._group_tied():
            if len(group) > 1 and self.optimizers:
                copies = [pending.gradients[each].clone() for each in parameters]
                pending.sums.update(zip(parameters, copies, strict=True))
                sums = start_sums(copies, group, self.transport, bucket_bytes=self.bucket_bytes)
                finishes.append(sums)

        def finish() -> None:
            for each in finishes:
                each()

        return finish

    def _finish_sums(self, pending: Pending) -> None:
        assert pending.finish_sums is not None, "an update is applied that is not issued"
        pending.finish_sums()
        pending.finish_sums = _pass

    def _tell_norm(self, pending: Pending) -> None:
        """Unscale, then post the square of the norm and whether it is infinite."""
        if not self.waits or pending.figures is not None:
            return
        if self.num_talks > 1:
            self._finish_sums(pending)
        scale = self.loss_scale.value_of(pending.number)
        gradients = pending.list_gradients()
        if scale != 1.0 and gradients and not pending.is_unscaled:
            torch._foreach_div_(gradients, scale)
        pending.is_unscaled = True
        square = self._sum_squares(
            {p: pending.sums.get(p, g) for p, g in pending.gradients.items()}
        )
        finite = math.isfinite(square)
        figures = [square if finite else 0.0, float(not finite)]
        pending.figures = torch.tensor(figures, dtype=torch.float64)
        if len(self.holdings.updating) > 1:
            pending.work = self.transport.sum_over(self.holdings.updating, pending.figures)

    def _settle(self, pending: Pending) -> None:
        """Wait until all that other stages have to say is here."""
        if pending.is_settled:
            return
        self._tell_norm(pending)
        self._finish_sums(pending)
        if pending.work is not None:
            pending.work.wait()
        pending.is_settled = True

    def _read(self, pending: Pending) -> bool:
        """Clip by what all stages have said; whether the gradients may be used."""
        assert pending.figures is not None
        square, num_bad = pending.figures.tolist()
        self._stop_if_bad(
            dict(zip(pending.gradients, pending.list_gradients(), strict=True)), num_bad
        )
        if self.policy.is_deferred:
            self.loss_scale.hold(pending.number + 1)
        return self._judge(pending.list_gradients(), square, is_finite=num_bad == 0)

    def _judge(self, gradients: Sequence[torch.Tensor], square: float, *, is_finite: bool) -> bool:
        """Clip, and learn for the loss scale; whether the gradients may be used."""
        scaled = self.loss_scale.dynamic
        if is_finite or not scaled:
            self._clip(gradients, math.sqrt(square) if is_finite else math.nan)
        self.loss_scale.adjust(finite=is_finite)
        return is_finite or not scaled

    def _stop_if_bad(self, gradients: Gradients, num_bad: float) -> None:
        """Before an update, on all ranks; where the loss is scaled, the update is left out."""
        if not self.check_finite or not num_bad or self.loss_scale.dynamic:
            return
        self._require_finite(gradients)
        if not math.isfinite(self._sum_squares(gradients)):
            raise NotFinite("the norm of the gradients is not finite.", remedy=FINITE_REMEDY)
        raise LostPeer(
            "a gradient of another rank is not finite.", remedy="Look for the cause there."
        )

    def _require_finite(self, gradients: Gradients) -> None:
        """Refuse gradients that are not finite, before they change a weight."""
        names = {p: n for named in self.parameters.values() for n, p in named.items()}
        for parameter, gradient in gradients.items():
            if not is_finite(gradient):
                raise NotFinite(
                    f"the gradient of {names[parameter]!r} is not finite.", remedy=FINITE_REMEDY
                )

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
                average_tensors(parameters, group, self.transport, bucket_bytes=self.bucket_bytes)

    def _group_tied(self) -> list[tuple[Group, list[torch.nn.Parameter]]]:
        """Tied weights by the devices that hold them."""
        tied = self.parameters.get(TIED, {})
        by_group: dict[Group, list[torch.nn.Parameter]] = {}
        for name in sorted(tied):
            group = self.holdings.devices_of(name)
            if self.policy.name == "local":
                group = self.holdings.replica_group(name, self.transport.rank)
            by_group.setdefault(group, []).append(tied[name])
        return sorted(by_group.items(), key=lambda each: each[0])

    def _reduce_tied(self) -> None:
        for group, parameters in self._group_tied():
            if len(group) > 1:
                sum_gradients(parameters, group, self.transport, bucket_bytes=self.bucket_bytes)

    def _agree(self) -> bool:
        """Unscale and clip over all stages; whether all gradients may be used.

        Under `local` every replica has a norm of its own.
        """
        found = {each: each.grad for each in self._list_parameters() if each.grad is not None}
        gradients = list(found.values())
        if self.loss_scale.value != 1.0 and gradients:
            torch._foreach_div_(gradients, self.loss_scale.value)
        is_local = self.policy.name == "local"
        replica = self.holdings.replica_of(self.transport.rank) if is_local else 0
        squares = [0.0] * (self.holdings.num_replicas if is_local else 1)
        square = self._sum_squares(found)
        finite = math.isfinite(square)
        squares[replica] = square if finite else 0.0
        *squares, num_bad = self.transport.sum_figures([*squares, float(not finite)])
        self._stop_if_bad(found, num_bad)
        return self._judge(gradients, squares[replica], is_finite=num_bad == 0)

    def _answers_for(self, name: str) -> bool:
        """Whether this device's gradient of a weight counts in the norm."""
        rank = self.transport.rank
        if self.policy.name == "local":
            return self.holdings.replica_group(name, rank)[0] == rank
        return self.holdings.owner_of(name) == rank

    def _sum_squares(self, gradients: Gradients) -> float:
        """The squares of the gradients for which this device answers."""
        total = 0.0
        for named in self.parameters.values():
            own = [
                gradients[parameter]
                for name, parameter in named.items()
                if parameter in gradients and self._answers_for(name)
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

    def _list_parameters(self) -> list[torch.nn.Parameter]:
        return [each for named in self.parameters.values() for each in named.values()]


def _pass() -> None:
    """There is nothing left to wait for."""
