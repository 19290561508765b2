"""WeightVersions: which tensors a micro-batch's forward and backward use as the stage's weights.

This is the seam for weight policies (nouns/policy.py): one small class for each, none of which the
executor knows. A stage runs as a function of its weights, so that a policy may give every
micro-batch a version of its own; gradients land on the tensors of that version, and `collect` moves
them to where the optimizer reads them.

A micro-batch is known by its number in the whole run. A version is the number of updates that it
has seen: with one update for every m micro-batches, the forward of micro-batch i at a stage with w
warm-ups meets version max(origin, i - w) // m, where `origin` is the micro-batch with which the
pipeline last started from empty. Its backward meets version i // m. F notes what it met, and both
are asserted: whatever the timing, an order that breaks them is a bug.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from graphplan.nouns.policy import WeightPolicy

Tensors = Sequence[torch.Tensor]


class WeightVersions:
    """`flush` and `local`: one version, the parameters; every batch ends before they change.

    `weights` are all tensors that the stage's function takes, in its order: parameters, buffers,
    constants.
    """

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        self.weights = list(weights)
        self.policy = policy
        self.stage = stage
        self.trainable = [each for each in self.weights if each.requires_grad]
        self.num_updates = 0
        self.origin = 0
        self.num_stamped = 0
        """Micro-batches whose backward has met the version that the policy promises."""
        self.most_stale = 0
        """The most updates that the weights of a forward were behind, when its own came."""
        self.most_versions = 1
        """The most weight versions that were in memory at once."""

    def forward_weights(self, micro_batch: int) -> Tensors:
        """What the forward of a micro-batch uses."""
        return self.weights

    def backward_weights(self, micro_batch: int) -> Tensors:
        """What its backward uses, also to recompute activations."""
        return self.weights

    def stamp(self, micro_batch: int) -> int:
        """The version that a forward which starts now meets."""
        return self.num_updates

    def check_stamp(self, micro_batch: int, stamp: int) -> None:
        """Assert that the backward of a micro-batch may run on what its forward noted."""
        assert stamp == self.num_updates, f"F used version {stamp}, B meets {self.num_updates}"
        self.num_stamped += 1

    def collect(self, micro_batch: int) -> None:
        """Move the gradients of a micro-batch to the `.grad` of the parameters."""

    def listen(self, arrive: Callable[[torch.Tensor], None], weights: Collection[Any]) -> None:
        """Let `arrive` know when a backward has added all it has to the gradient of a weight."""
        told = weakref.WeakMethod(arrive)

        def notice(weight: torch.Tensor) -> None:
            if (arrived := told()) is not None:  # The weights may be used longer than the pipeline.
                arrived(weight)

        for weight in weights:
            weight.register_post_accumulate_grad_hook(notice)

    def prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """The optimizers are about to change the parameters."""

    def updated(self) -> None:
        """The optimizers have changed the parameters, or left them because of infinities."""
        self.num_updates += 1

    def restart(self, micro_batch: int) -> None:
        """The pipeline is empty; it goes on with this micro-batch."""
        self.origin = micro_batch

    @property
    def num_versions(self) -> int:
        """Weight versions in memory, the current one included."""
        return 1

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint in mid-stream must hold besides the parameters."""
        return {}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take back what `state_tensors` gave, after the parameters have been loaded."""

    def adopt(self, micro_batch: int, stamp: int) -> None:
        """A micro-batch of a checkpoint is in flight, with the stamp that its forward noted."""


class StreamVersions(WeightVersions):
    """What all asynchronous policies have in common: stamps, and gradients that change tensors."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self.warmup = policy.warmups[stage]
        self.accumulate = policy.accumulate
        self._arrive: Callable[[torch.Tensor], None] | None = None
        self._awaited: Collection[torch.Tensor] = ()
        """Weights of whose gradients somebody wants to know at once."""
        self.is_deferred = False
        """Whether updates are applied when they are first used, and not as soon as they can be."""

    def met_forward(self, micro_batch: int) -> int:
        """The version that the warm-up promises to the forward of a micro-batch."""
        return max(self.origin, micro_batch - self.warmup) // self.accumulate

    def met_backward(self, micro_batch: int) -> int:
        """The version that its backward meets: that of its own update."""
        return micro_batch // self.accumulate

    def stamp(self, micro_batch: int) -> int:
        """The version that a forward meets; it must be the promised one."""
        promised = self.met_forward(micro_batch)
        assert self._is_promised(promised, micro_batch), (
            f"F of micro-batch {micro_batch} at stage {self.stage} meets version"
            f" {self.num_updates}, not {promised}"
        )
        return self.num_updates

    def check_stamp(self, micro_batch: int, stamp: int) -> None:
        """The backward meets the version of its own update, whatever the forward noted."""
        promised = self.met_backward(micro_batch)
        assert self._is_promised(promised, micro_batch) and stamp <= self.num_updates, (
            f"B of micro-batch {micro_batch} at stage {self.stage} meets version"
            f" {self.num_updates}, not {promised}; F met {stamp}"
        )
        self.num_stamped += 1
        self.most_stale = max(self.most_stale, promised - self.read_version(micro_batch, stamp))
        self.most_versions = max(self.most_versions, self.num_versions)

    def read_version(self, micro_batch: int, stamp: int) -> int:
        """The version that the forward of a micro-batch used, not always the newest it met."""
        return stamp

    def _is_promised(self, promised: int, micro_batch: int) -> bool:
        """Whether the current version is the promised one; a deferred one may come until used."""
        least = max(self.met_backward(micro_batch) - 1, 0) if self.is_deferred else promised
        return least <= self.num_updates <= promised

    def distance(self, micro_batch: int) -> int:
        """Updates between the version that a forward meets now and that of its backward."""
        return self.met_backward(micro_batch) - self.num_updates

    def make_leaves(self, tensors: Tensors) -> list[torch.Tensor]:
        """The weights with leaves of autograd in place of the trained ones.

        `.data` shares memory but not autograd's count of changes: what a leaf's memory holds when
        the backward runs is the policy's to say.
        """
        given = iter(tensors)
        leaves = [
            next(given).data.requires_grad_() if each.requires_grad else each
            for each in self.weights
        ]
        for leaf, weight in zip(leaves, self.weights, strict=True):
            if weight in self._awaited:
                notice = partial(self._notice, weight)
                leaf.register_post_accumulate_grad_hook(notice)  # type: ignore[no-untyped-call]
        return leaves

    def listen(self, arrive: Callable[[torch.Tensor], None], weights: Collection[Any]) -> None:
        """The gradients of leaves move to the weights as soon as they are there."""
        self._arrive, self._awaited = arrive, frozenset(weights)

    def _notice(self, weight: torch.Tensor, leaf: torch.Tensor) -> None:
        assert self._arrive is not None
        _move_gradient(leaf, weight)
        self._arrive(weight)

    def gather(self, leaves: Tensors) -> None:
        """Add the gradients of leaves to those of the parameters."""
        for leaf, weight in zip(leaves, self.weights, strict=True):
            if leaf is not weight:
                _move_gradient(leaf, weight)

    # -- checkpoints -----------------------------------------------------------------------------

    @staticmethod
    def name_leaves(word: str, leaves_by_number: Mapping[int, Tensors]) -> dict[str, torch.Tensor]:
        """The trained tensors of numbered versions, as `word.number.place`."""
        return {
            f"{word}.{number}.{place}": leaf.detach()
            for number, leaves in leaves_by_number.items()
            for place, leaf in enumerate(leaves)
            if leaf.requires_grad
        }

    def find_leaves(
        self, word: str, tensors: Mapping[str, torch.Tensor]
    ) -> dict[int, list[torch.Tensor]]:
        """Leaves by number again, from what `name_leaves` gave."""
        found: dict[int, dict[int, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if match := re.fullmatch(rf"{re.escape(word)}\.(\d+)\.(\d+)", name):
                found.setdefault(int(match[1]), {})[int(match[2])] = tensor
        return {
            number: self.make_leaves(
                [
                    by_place[place].to(own.device)
                    for place, own in zip(sorted(by_place), self.trainable, strict=True)
                ]
            )
            for number, by_place in sorted(found.items())
        }


def _move_gradient(leaf: torch.Tensor, weight: torch.Tensor) -> None:
    if leaf.grad is None:
        return
    if weight.grad is None:
        weight.grad = leaf.grad
    else:
        weight.grad += leaf.grad
    leaf.grad = None
