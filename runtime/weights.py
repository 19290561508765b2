"""WeightVersions: which tensors a micro-batch's forward and backward use as the stage's weights.

This is the seam for weight policies (nouns/policy.py): one small class for each, none of which the
executor knows. A stage runs as a function of its weights, so that a policy may give every
micro-batch a version of its own; gradients land on the tensors of that version, and `collect` moves
them to where the optimizer reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensors = Sequence[torch.Tensor]


class WeightVersions:
    """`flush`: one version, the parameters themselves; every batch ends before they change.

    `weights` are all tensors that the stage's function takes, in its order: parameters, buffers,
    constants. `num_updates` is the version stamp: F notes it, B must find what the policy promises.
    """

    def __init__(self, weights: Tensors) -> None:
        self.weights = list(weights)
        self.trainable = [each for each in self.weights if each.requires_grad]
        self.num_updates = 0

    def forward_weights(self, micro_batch: int) -> Tensors:
        """What the forward of a micro-batch uses."""
        return self.weights

    def backward_weights(self, micro_batch: int) -> Tensors:
        """What its backward uses, also to recompute activations."""
        return self.weights

    def stamp(self, micro_batch: int) -> int:
        """The version that a forward which starts now uses."""
        return self.num_updates

    def check_stamp(self, micro_batch: int, stamp: int) -> None:
        """Assert that the backward of a micro-batch may run on what its forward noted."""
        assert stamp == self.num_updates, f"F used version {stamp}, B meets {self.num_updates}"

    def collect(self, micro_batch: int) -> None:
        """Move the gradients of a micro-batch to the `.grad` of the parameters."""

    def updated(self) -> None:
        """The optimizer has changed the parameters."""
        self.num_updates += 1
