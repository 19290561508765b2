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

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.training import BUCKET_BYTES
from graphplan_runtime.faults.status import Status
from graphplan_runtime.messages.buckets import average_tensors, start_sums, sum_gradients
from graphplan_runtime.messages.transport import Group, Transport
from graphplan_runtime.updates.buckets import Piece
from graphplan_runtime.updates.gathered import GatheredWeights
from graphplan_runtime.updates.holdings import TIED, Holdings
from graphplan_runtime.updates.norms import Norms
from graphplan_runtime.updates.pending import Pending
from graphplan_runtime.updates.reducers import Reducer
from graphplan_runtime.updates.replicated import Replicated
from graphplan_runtime.updates.scaling import LossScale
from graphplan_runtime.updates.shards import Shards
from graphplan_runtime.updates.weights import WeightVersions

Optimizers = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Schedulers = Callable[[torch.optim.Optimizer], Any]


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
        status: Status | None = None,
    ) -> None:
        self.holdings = holdings
        self.transport = transport
        self.versions_by_stage = versions_by_stage
        self.policy = policy or WeightPolicy()
        self.bucket_bytes = bucket_bytes
        self.check_finite = check_finite
        self.loss_scale = loss_scale or LossScale()
        self.parameters = holdings.sort_trained(parameters_by_stage)
        owned = {o: [*named.values()] for o, named in self.parameters.items()}
        self.optimizers = {o: optimizer(each) for o, each in owned.items() if optimizer}
        self.reducers: dict[int, Reducer] = {}
        """By stage, where replicas reduce their gradients."""
        self.shards: dict[int, Shards] = {}
        """By stage, where replicas share its state."""
        self.gathered: dict[int, GatheredWeights] = {}
        """By stage, where they share its weights, too."""
        self._share(status or Status())
        self.schedulers = {o: scheduler(each) for o, each in self.optimizers.items() if scheduler}
        self.norms = Norms(
            parameters=self.parameters,
            answers_for=self._answers_for,
            clip_norm=clip_norm,
            check_finite=check_finite,
            loss_scale=self.loss_scale,
        )
        self.waits = clip_norm is not None or self.loss_scale.dynamic
        # Where batches end by themselves no stage need be updated before all gradients are known.
        self.waits |= check_finite and self.policy.is_synchronous
        self.pending: dict[int, Pending] = {}
        """Updates that a stage of this device has issued and that are not applied yet."""
        self.num_issued = Counter[int]()
        self._updating = [s for s in versions_by_stage if s in holdings.updating_stages]

    @property
    def num_talks(self) -> int:
        """How often stages talk about an update of an asynchronous policy."""
        return 0 if self.policy.is_synchronous else self.waits + bool(self.holdings.tied)

    def _share(self, status: Status) -> None:
        """What the replicas of every stage do together."""
        replicated = Replicated(
            holdings=self.holdings,
            transport=self.transport,
            policy=self.policy,
            bucket_bytes=self.bucket_bytes,
            status=status,
        )
        for stage in [s for s in self.versions_by_stage if s in self.parameters]:
            named = self.parameters[stage]
            shards = replicated.make_shards(stage, named, self.optimizers.get(stage))
            reducer = replicated.make_reducer(stage, named, shards)
            if reducer is not None:
                self.reducers[stage] = reducer
                self.versions_by_stage[stage].listen(reducer.arrive, named.values())
            if shards is not None:
                self.shards[stage] = shards
                self.parameters[stage] = dict(shards.own)
                if not shards.keeps_weights:
                    gathered = self.gathered[stage] = GatheredWeights(shards, status.waiting)
                    self.versions_by_stage[stage].listen(gathered.arrive, named.values())

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
            self.norms.require_finite({p: p.grad for p in stepped if p.grad is not None})
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
        square = self.norms.sum_squares(
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
        self.norms.stop_if_bad(
            dict(zip(pending.gradients, pending.list_gradients(), strict=True)), num_bad
        )
        if self.policy.is_deferred:
            self.loss_scale.hold(pending.number + 1)
        return self.norms.judge(pending.list_gradients(), square, is_finite=num_bad == 0)

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
        square = self.norms.sum_squares(found)
        finite = math.isfinite(square)
        squares[replica] = square if finite else 0.0
        *squares, num_bad = self.transport.sum_figures([*squares, float(not finite)])
        self.norms.stop_if_bad(found, num_bad)
        return self.norms.judge(gradients, squares[replica], is_finite=num_bad == 0)

    def _answers_for(self, name: str) -> bool:
        """Whether this device's gradient of a weight counts in the norm."""
        rank = self.transport.rank
        if self.policy.name == "local":
            return self.holdings.replica_group(name, rank)[0] == rank
        return self.find_piece(name) is not None or self.holdings.owner_of(name) == rank

    def find_piece(self, name: str) -> Piece | None:
        """What this replica owns of a weight that replicas share."""
        found = (shards.pieces.get(name) for shards in self.shards.values())
        return next((piece for piece in found if piece is not None), None)

    def saver_of(self, name: str) -> int:
        """The device that saves a weight and what the optimizer has for it."""
        for shards in self.shards.values():
            if name in shards.names.values():
                return shards.saver_of(name)
        return self.holdings.owner_of(name)

    def _apply(self, stage: int, *, skip: bool = False) -> None:
        if stage in self.optimizers:
            self._step(stage, skip=skip)
        if stage in self.versions_by_stage and not skip:
            self.versions_by_stage[stage].updated()

    def _step(self, owner: int, *, skip: bool) -> None:
        if not skip:
            self.optimizers[owner].step()
        self.optimizers[owner].zero_grad()
        if owner in self.shards and not skip:
            self.shards[owner].send_updates()

    def _list_parameters(self) -> list[torch.nn.Parameter]:
        return [each for named in self.parameters.values() for each in named.values()]


def _pass() -> None:
    """There is nothing left to wait for."""
