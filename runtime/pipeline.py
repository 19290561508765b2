"""Pipeline: this rank's part of a plan, as a library for training loops of one's own.

>>> pipeline = Pipeline(plan, model, inputs=inputs, loss=loss, optimizer=torch.optim.AdamW)
>>> for batch in loader:
...     loss = pipeline.step(batch)
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphplan.errors import BadInput
from graphplan.files import encode_noun
from graphplan.frontend import Captured
from graphplan.nouns.plan import Plan
from graphplan_runtime.agreement import require_agreement
from graphplan_runtime.checkpoints.shelf import KEEP_LAST
from graphplan_runtime.checkpoints.writing import SaveFolder
from graphplan_runtime.faults.status import WAITING, Phase, Status
from graphplan_runtime.messages.losses import LossExchange
from graphplan_runtime.messages.queues import Note
from graphplan_runtime.messages.transport import Transport
from graphplan_runtime.messages.wiretypes import cast_dtype
from graphplan_runtime.placement import (
    list_communicators,
    list_gathering,
    list_pairs,
    place_weight,
)
from graphplan_runtime.saving import load_pipeline, save_pipeline
from graphplan_runtime.stages.capture import capture_model, check_model
from graphplan_runtime.stages.executor import Actions, StepState, run_actions
from graphplan_runtime.stages.randomness import kept_generators
from graphplan_runtime.stages.resolve import SENDS_KEPT, Rank
from graphplan_runtime.stages.stage import StageRunner
from graphplan_runtime.stages.variants import Batch, Recapture, Variants
from graphplan_runtime.streams.flight import Flight, Shapes
from graphplan_runtime.streams.stream import Stream
from graphplan_runtime.updates.holdings import Holdings
from graphplan_runtime.updates.policies import make_versions
from graphplan_runtime.updates.scaling import LossScale
from graphplan_runtime.updates.update import Optimizers, Schedulers, Updater
from graphplan_runtime.updates.weights import StreamVersions


class Pipeline:
    """Trains one model under one plan; every rank makes one and calls `step` with every batch.

    `torch.distributed` must be initialised with one process for each device of the plan.
    """

    warn: Callable[[str], None] = staticmethod(warnings.warn)
    """How rank 0 says what the user must know, of a checkpoint for example."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module | Captured,
        *,
        inputs: Callable[[int], Batch] | Batch | None = None,
        loss: Callable[[Any, Batch], torch.Tensor] | None = None,
        optimizer: Optimizers | None = None,
        scheduler: Schedulers | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        state: Mapping[str, torch.Tensor] | None = None,
        copy_state: bool = True,
        recapture: Recapture | None = None,
        check_finite: bool = False,
        status: Status | None = None,
    ) -> None:
        """`state` gives the weights by name, those of this device's stages at least; without it
        they are the module's own. These are trained in place, those of `state` with `copy_state`
        False only, which saves the memory of a copy. `recapture` serves batches of
        other shapes; a module brings its own. Without an optimizer, gradients stay in `weights`.
        """
        captured, recapture = capture_model(model, inputs, loss, recapture)
        check_model(plan, captured)
        self.plan = plan
        self.captured = captured
        self.seed, self.num_steps = seed, 0
        self.device = torch.device(device)
        self.status = status or Status()
        self._folders: dict[Path, SaveFolder] = {}
        self.ended: dict[int, list[Note]] = {}
        """When the tasks ran of the batches that ended in the last step, by number of the batch."""
        self.holdings = Holdings(captured.graph, plan.stages)
        with self.status.waiting():
            require_agreement({"plan": encode_noun(plan).decode()})
            self.transport = self._make_transport()
        self.rank = self.transport.rank
        self.weights = self._take_weights(state or {}, copy=copy_state)
        self.versions = {
            s: make_versions(plan.policy, s, [self.weights[n] for n in self._list_weights(s)])
            for s in plan.prices.stages_by_device[self.rank]
        }
        self.variants = self._make_variants(recapture)
        self.losses = LossExchange(self.transport, self._find_loss_devices())
        self.updater = self._make_updater(optimizer, scheduler, clip_norm, check_finite)
        self.variants.gathered = self.updater.gathered
        self._actor = self._make_actor(check_finite=check_finite)
        self.flight = None if plan.policy.is_synchronous else self._make_flight()
        self._last_actions: Actions = ()

    # -- making ----------------------------------------------------------------------------------

    def _make_transport(self) -> Transport:
        return Transport(
            self.device,
            pairs=list_pairs(self.plan),
            groups=list_communicators(self.plan, self.holdings),
            gathering=list_gathering(self.plan),
        )

    def _list_weights(self, stage: int) -> list[str]:
        """Weights of a stage, in the order of the graph, as its module has them."""
        by_weight = self.holdings.stages_by_weight
        return [w.name for w in self.captured.graph.weights if stage in by_weight.get(w.name, ())]

    def _take_weights(
        self, state: Mapping[str, torch.Tensor], *, copy: bool
    ) -> dict[str, torch.Tensor]:
        """The tensors of this device's stages; replicas start from the first one's."""
        own, held = self.captured.weights(), {}
        names = {
            n for s in self.plan.prices.stages_by_device[self.rank] for n in self._list_weights(s)
        }
        for weight in self.captured.graph.weights:
            if weight.name in names:
                known = [each for each in (weight.name, *weight.aliases) if each in state]
                tensor = state[known[0]] if known else own[weight.name]
                if known and copy:
                    tensor = tensor.clone()
                dtype = cast_dtype(tensor.dtype, self.plan.training)
                held[weight.name] = place_weight(tensor, weight, self.device, dtype)
        with torch.no_grad():
            for name in sorted(held):
                group = self.holdings.devices_of(name)
                if len(group) > 1:
                    with self.status.waiting():
                        self.transport.copy_from_first(group, held[name].data)
        return held

    def _find_loss_devices(self) -> tuple[int, ...]:
        loss = self.captured.graph.loss
        return next(each.devices for each in self.plan.stages.stages if loss in each.ops)

    def _list_parameters(self) -> dict[int, dict[str, nn.Parameter]]:
        return {
            s: {
                name: parameter
                for name in self._list_weights(s)
                if isinstance(parameter := self.weights[name], nn.Parameter)
            }
            for s in self.versions
        }

    def _make_variants(self, recapture: Recapture | None) -> Variants:
        variants = Variants(
            self.plan,
            self.plan.parse_program(),
            self.captured,
            rank=self.rank,
            device=self.device,
            recapture=recapture,
        )
        variants.versions = self.versions
        return variants

    def _make_updater(
        self,
        optimizer: Optimizers | None,
        scheduler: Schedulers | None,
        clip_norm: float | None,
        check_finite: bool,
    ) -> Updater:
        is_half = self.plan.training.precision == "float16"
        return Updater(
            self.holdings,
            self.transport,
            parameters_by_stage=self._list_parameters(),
            versions_by_stage=self.versions,
            optimizer=optimizer,
            scheduler=scheduler,
            clip_norm=clip_norm,
            check_finite=check_finite,
            loss_scale=LossScale.for_float16() if is_half else None,
            policy=self.plan.policy,
            bucket_bytes=self.plan.training.bucket_bytes,
            status=self.status,
        )

    def _make_actor(self, *, check_finite: bool) -> Rank:
        policy = self.plan.policy
        return Rank(
            runners={},
            transport=self.transport,
            closing=self.updater,
            status=self.status,
            check_finite=check_finite,
            policy=policy,
            sends_kept=max(SENDS_KEPT, *(w + 2 for w in policy.warmups), 0),
        )

    def _make_flight(self) -> Flight:
        line = self.variants.program.instructions_by_device[self.rank]
        defers = bool(self.updater.num_talks) and self.plan.policy.is_deferred
        for versions in self.versions.values():
            if isinstance(versions, StreamVersions):
                versions.is_deferred = defers
        return Flight(
            Stream(
                self.plan,
                self.rank,
                meets=self.updater.num_talks,
                joined=self.holdings.joins_stages,
            ),
            line,
            versions=self.versions,
            losses=self.losses,
            updater=self.updater,
            status=self.status,
        )

    # -- running ---------------------------------------------------------------------------------

    def step(self, batch: Batch) -> float:
        """Train on one batch, of any number of samples; the loss, on every rank.

        Every rank gets the whole batch and takes its rows of what its stages read; the other
        tensors may be on the meta device.

        Under an asynchronous weight policy batches follow one another: when `step` returns, some
        backwards of the batch are still to come, with the next batch or with `drain`. The loss is
        that of the batch `lag` steps before, not a number for the first `lag` ones.
        """
        try:
            variant, tensors = self.variants.find(batch)
            actions = self.variants.resolve(variant, tensors, self._actor)
        except BadInput as error:
            error.message = f"The batch of step {self.num_steps + 1}: {error.message}"
            raise
        state = StepState(
            step=self.num_steps,
            seed=self.seed,
            inputs={name: self._place_input(tensors[name]) for name in variant.inputs},
            loss_scale=self.updater.loss_scale,
        )
        if actions is not self._last_actions:  # Other shapes need other buffers.
            self.transport.queues.drop_free()
            self._last_actions = actions
        self.status.enter(Phase.TRAINING, step=self.num_steps)
        with kept_generators(self.device) if variant.is_random else contextlib.nullcontext():
            loss = self._run(state, actions, {n: tuple(t.shape) for n, t in tensors.items()})
        self.num_steps += 1
        return loss

    def _run(self, state: StepState, actions: Actions, shapes: Shapes) -> float:
        if self.flight is not None:
            state.first = self.num_steps * self.flight.stream.count
            loss = self.flight.feed(state, actions, shapes)
            self._note(self.flight.landed)
            return loss
        told = self.losses.open()
        run_actions(actions, state, self.status)
        self.status.numbers[WAITING] = 1
        self.updater.finish()
        told.tell(state.sum_losses())
        loss = told.hear()
        self._note([state])
        self.status.numbers[WAITING] = 0
        return loss

    def _note(self, ended: Iterable[StepState]) -> None:
        """Remember when the tasks of batches ran."""
        self.ended = {state.step: self.transport.queues.read(state.notes) for state in ended}

    @property
    def lag(self) -> int:
        """By how many batches the loss that `step` gives is late."""
        return self.flight.stream.lag if self.flight is not None else 0

    def drain(self) -> list[float]:
        """Let all batches in flight end; the losses that `step` has not given yet.

        The next batch then starts an empty pipeline. Nothing is in flight under flush and local.
        """
        if self.flight is None:
            return []
        self.status.enter(Phase.TRAINING)
        with kept_generators(self.device):
            losses = self.flight.drain()
        self._note(self.flight.landed)
        return losses

    def stream(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on batches and drain; their losses in order, each as soon as it is known."""
        for number, batch in enumerate(batches):
            loss = self.step(batch)
            if number >= self.lag:
                yield loss
        yield from self.drain()

    def _place_input(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.transport.queues.place(tensor, cast_dtype(tensor.dtype, self.plan.training))

    # -- checkpoints -----------------------------------------------------------------------------

    def gather_weights(self) -> dict[str, torch.Tensor]:
        """Copies of this device's weights, whole; all ranks must call it.

        `weights` are the weights themselves, and no numbers between two steps where replicas share
        them (zero 3).
        """
        found = {name: each.detach().clone() for name, each in self.weights.items()}
        with self.status.waiting():
            for shards in self.updater.shards.values():
                if not shards.keeps_weights:
                    parts = {name: each.detach() for name, each in shards.own.items()}
                    found |= {name: each.clone() for name, each in shards.assemble(parts)}
        return found

    def prepare_save(self, folder: Path | str) -> SaveFolder:
        """Try the folder and lock it for this run; all ranks must call it, before the first step.

        `save` does so by itself, when there is something to lose already.
        """
        path = Path(folder)
        if path not in self._folders:
            self._folders[path] = SaveFolder(
                path,
                rank=self.rank,
                num_ranks=self.transport.num_ranks,
                warn=self.warn,
                status=self.status,
            )
        return self._folders[path]

    def save(self, folder: Path | str, *, keep_last: int = KEEP_LAST) -> Path:
        """Write a checkpoint; all ranks must call it. Returns where it is.

        Batches in flight are part of it, and the run goes on as if it had not been saved. Of older
        ones, `keep_last` less one stay, and the last with finite weights.
        """
        return save_pipeline(self, Path(folder), keep_last=keep_last)

    def close(self) -> None:
        """Unlock the folders that were saved into; the end of the process does so too."""
        for each in self._folders.values():
            each.close()
        self._folders.clear()

    def load(self, folder: Path | str, *, verify: bool = True) -> int:
        """Go on from a checkpoint, made under this plan or another one; the number of steps done.

        Feed the batches from that number on. Under the plan that made it, a checkpoint in
        mid-stream goes on as if nothing had happened; another plan starts from its weights.
        """
        load_pipeline(self, Path(folder), verify=verify)
        return self.num_steps

    def restart(self) -> None:
        """Go on from empty with the next batch."""
        count = self.plan.prices.num_micro_batches(0)
        for versions in self.versions.values():
            versions.num_updates = self.num_steps
            if self.flight is not None:
                versions.restart(self.num_steps * count)
                versions.num_updates = self.num_steps * count // self.plan.policy.accumulate
        if self.flight is not None:
            self.flight.stream.resume(self.num_steps, self.num_steps)
        self.updater.resume({s: each.num_updates for s, each in self.versions.items()}, ())

    @property
    def runners(self) -> list[tuple[int, StageRunner]]:
        """What runs this rank's stages, with the stage, on inputs of all shapes so far."""
        return [each for v in self.variants.list_all() for each in v.runners.items()]

    def resolve_shapes(self, shapes: Shapes) -> tuple[Mapping[int, StageRunner], Actions]:
        """What runs a batch of which only the sizes are known."""
        variant, tensors = self.variants.find(self.variants.imagine(shapes))
        return variant.runners, self.variants.resolve(variant, tensors, self._actor)
