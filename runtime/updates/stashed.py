"""Stashed versions: forward and backward of a micro-batch use the same, older weights.

    stash           the current version at the forward             w_s + 1 versions
    vertical-sync   max(origin, i - max w) // m at every stage     max w + 1 versions
    2bw             max(i // m - 1, 0)                             2 versions

PipeDream (arXiv 1806.03377) has the first two, PipeDream-2BW (arXiv 2006.09503) the third. An older
version keeps its memory; the parameters get new memory before the optimizer changes them, unless
nobody needs what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.updates.weights import StreamVersions, Tensors


class Stash(StreamVersions):
    """`stash`: the backward uses what the forward used."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self._versions: dict[int, list[torch.Tensor]] = {}
        """Leaves by version; the current one is there when a micro-batch has used it."""
        self._used: dict[int, int] = {}
        """Versions by micro-batch in flight."""
        self._next = 0
        """The micro-batch whose forward comes next."""

    def version_of(self, micro_batch: int) -> int:
        """The version that a micro-batch uses."""
        return self.met_forward(micro_batch)

    def read_version(self, micro_batch: int, stamp: int) -> int:
        return self._used[micro_batch]

    def forward_weights(self, micro_batch: int) -> Tensors:
        self._next = micro_batch + 1
        # After a resume from another plan's checkpoint older versions than the first do not exist.
        oldest = min(self._versions, default=self.num_updates)
        version = max(self.version_of(micro_batch), min(oldest, self.num_updates))
        self._used[micro_batch] = version
        return self._open(version)

    def backward_weights(self, micro_batch: int) -> Tensors:
        return self._versions[self._used[micro_batch]]

    def collect(self, micro_batch: int) -> None:
        self.gather(self._versions[self._used.pop(micro_batch)])

    def prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Keep what is needed, drop the rest, and let the parameters have new memory."""
        used, wanted = set(self._used.values()), self.version_of(self._next)
        self._versions = {n: v for n, v in self._versions.items() if n in used or n >= wanted}
        if self.num_updates in used or self.num_updates >= wanted:
            self._open(self.num_updates)
            for weight in self.trainable:
                weight.data = weight.data.clone()

    def restart(self, micro_batch: int) -> None:
        super().restart(micro_batch)
        self._next = micro_batch

    @property
    def num_versions(self) -> int:
        return len({*self._versions, self.num_updates})

    def _open(self, version: int) -> list[torch.Tensor]:
        if version not in self._versions:
            assert version == self.num_updates, f"version {version} is gone"
            self._versions[version] = self.make_leaves(self.trainable)
        return self._versions[version]

    # -- checkpoints -----------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, torch.Tensor]:
        older = {n: leaves for n, leaves in self._versions.items() if n != self.num_updates}
        return self.name_leaves("version", older)

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._versions = self.find_leaves("version", tensors)

    def adopt(self, micro_batch: int, stamp: int) -> None:
        self._next = max(self._next, micro_batch + 1)
        version = self._used[micro_batch] = self.version_of(micro_batch)
        self._open(version)


class VerticalSync(Stash):
    """`vertical-sync`: every stage uses the version that the first one meets."""

    def __init__(self, weights: Tensors, policy: WeightPolicy, stage: int) -> None:
        super().__init__(weights, policy, stage)
        self._most = max(policy.warmups)

    def version_of(self, micro_batch: int) -> int:
        return max(self.origin, micro_batch - self._most) // self.accumulate


class DoubleBuffered(Stash):
    """`2bw`: the version before the current one of the micro-batch's own update."""

    def version_of(self, micro_batch: int) -> int:
        return max(self.met_backward(micro_batch) - 1, 0)
