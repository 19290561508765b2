"""Predicted versions: the forward uses weights that are not there yet.

    naive        F current, B current                                       1 version
    predict      F current less k directions, B current                     2 versions
    spectrain1   F less k + e directions, B less e directions               2 versions
    spectrain2   F less k directions, B the same weights                    w_s + 2 versions

k is the distance to the version that the backward will meet, read from the stamp; e is half of
what the stage's warm-up is below the largest one (floor(s / 2) in a chain). PipeOptim: arXiv
2312.00839; SpecTrain: arXiv 1809.02839. The direction is that of `directions.py`.

Where F and B differ, autograd's graph points at memory whose contents are exchanged between the
two: that of the parameters themselves (naive), or one buffer for all micro-batches in flight, which
holds a prediction during a forward and what the policy says during a backward. So no policy here
holds a version for each micro-batch, except spectrain2. Values that an op computes from weights
alone are those of the forward, except views and casts of autocast (recast.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.updates.directions import Directions
from graphplan_runtime.updates.weights import StreamVersions, Tensors


class Naive(StreamVersions):
    """`naive`: whatever the parameters hold."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self._leaves: list[torch.Tensor] = []

    def forward_weights(self, micro_batch: int) -> Tensors:
        self._leaves = self._leaves or self.make_leaves(self.trainable)
        return self._leaves

    def adopt(self, micro_batch: int, stamp: int) -> None:
        self.forward_weights(micro_batch)

    def backward_weights(self, micro_batch: int) -> Tensors:
        return self._leaves

    def collect(self, micro_batch: int) -> None:
        self.gather(self._leaves)


class Directed(StreamVersions):
    """What policies that look ahead have in common: the direction of the last update."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self.directions = Directions(self.trainable, form=policy.direction)

    def prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if self.policy.predicts(self.stage):
            self.directions.prepare(optimizers)

    def updated(self) -> None:
        super().updated()
        self.directions.updated()

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return self.directions.state_tensors()

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.directions.load_tensors(tensors)


class Predict(Directed):
    """`predict`: the forward looks ahead by the distance of its stamp."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self._buffer: list[torch.Tensor] = []
        self._leaves: list[torch.Tensor] = []

    def forward_distance(self, micro_batch: int) -> int:
        """How many directions the forward goes ahead."""
        return self.distance(micro_batch)

    @property
    def backward_distance(self) -> int:
        """How many directions the backward goes ahead."""
        return 0

    def forward_weights(self, micro_batch: int) -> Tensors:
        return self._fill(self.forward_distance(micro_batch))

    def backward_weights(self, micro_batch: int) -> Tensors:
        return self._fill(self.backward_distance)

    def collect(self, micro_batch: int) -> None:
        self.gather(self._leaves)

    @property
    def num_versions(self) -> int:
        return 2 if self._buffer else 1

    def _fill(self, distance: int) -> list[torch.Tensor]:
        """The leaves, with a prediction in their memory."""
        if not self._leaves:
            if not self.warmup and not self.backward_distance:
                self._leaves = self.make_leaves(self.trainable)  # F and B both use the current one.
            else:
                self._buffer = [torch.empty_like(each) for each in self.trainable]
                self._leaves = self.make_leaves(self._buffer)
        if self._buffer:
            self.directions.extrapolate(self._buffer, distance)
        return self._leaves

    def adopt(self, micro_batch: int, stamp: int) -> None:
        self._fill(self.backward_distance)


class SpecTrain1(Predict):
    """`spectrain1`: forward and backward aim at one version of all stages."""

    def forward_distance(self, micro_batch: int) -> int:
        return self.distance(micro_batch) + self.backward_distance

    @property
    def backward_distance(self) -> int:
        return (max(self.policy.warmups) - self.warmup) // 2


class SpecTrain2(Directed):
    """`spectrain2`: predicted weights stay until the backward."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self._kept: dict[int, list[torch.Tensor]] = {}

    def forward_weights(self, micro_batch: int) -> Tensors:
        if self.warmup:
            made = [torch.empty_like(each) for each in self.trainable]
            self.directions.extrapolate(made, self.distance(micro_batch))
            leaves = self._kept[micro_batch] = self.make_leaves(made)
        else:
            leaves = self._kept[micro_batch] = self.make_leaves(self.trainable)
        return leaves

    def backward_weights(self, micro_batch: int) -> Tensors:
        return self._kept[micro_batch]

    def collect(self, micro_batch: int) -> None:
        self.gather(self._kept.pop(micro_batch))

    @property
    def num_versions(self) -> int:
        return 1 + len(self._kept) if self.warmup else 1

    # -- checkpoints -----------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, torch.Tensor]:
        return super().state_tensors() | self.name_leaves("kept", self._kept)

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_tensors(tensors)
        self._kept = self.find_leaves("kept", tensors)
