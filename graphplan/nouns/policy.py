"""WeightPolicy: which weight version F and B use, and when gradients are applied."""

from __future__ import annotations

from typing import Literal, get_args

from graphplan.nouns.base import Noun
from graphplan.nouns.training import TELLING, OptimizerName

PolicyName = Literal[
    "flush",
    "naive",
    "stash",
    "vertical-sync",
    "2bw",
    "predict",
    "spectrain1",
    "spectrain2",
    "local",
]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
DirectionForm = Literal["optimizer", "displacement"]


class WeightPolicy(Noun, frozen=True, kw_only=True):
    """A policy with its warm-ups w_s (forwards of a stage before its first backward, less one)."""

    name: PolicyName = "flush"
    warmups: tuple[int, ...] = ()
    """By stage; () for flush."""
    accumulate: int = 1
    """Micro-batches of one update for the asynchronous policies (m of 2bw)."""
    local_steps: int = 1
    """Local updates between two averagings (H of local)."""
    direction: DirectionForm = "optimizer"
    """What predict and spectrain extrapolate along: the optimizer's own direction, or the last
    change of the weights, which serves any optimizer."""

    def __post_init__(self) -> None:
        if min((self.accumulate, self.local_steps, *self.warmups), default=1) < 0:
            raise ValueError("a policy's counts cannot be negative")

    @property
    def is_synchronous(self) -> bool:
        """Whether every batch ends with a barrier."""
        return self.name in ("flush", "local")

    @property
    def forgets(self) -> bool:
        """Whether the backward uses other weights than the forward, which are gone by then."""
        return self.name in ("naive", "predict", "spectrain1")

    @property
    def is_deferred(self) -> bool:
        """Whether an update is first used long after its gradients: a whole update later."""
        return self.name == "2bw"

    @property
    def most_stale(self) -> int:
        """The most updates that happen between a micro-batch's forward and its own update."""
        if self.is_synchronous:
            return 0
        if self.name == "2bw":
            return 1
        return -(-max(self.warmups, default=0) // self.accumulate)

    def predicts(self, stage: int) -> bool:
        """Whether a stage ever uses weights that are not there yet."""
        if self.name not in ("predict", "spectrain1", "spectrain2") or not self.warmups:
            return False
        below = max(self.warmups) - self.warmups[stage]
        return self.warmups[stage] > 0 or (self.name == "spectrain1" and below > 1)

    def num_directions(self, stage: int, optimizer: OptimizerName) -> int:
        """Buffers as large as the weights for a direction that the optimizer does not keep: the
        last displacement, or the last gradient of plain SGD."""
        is_told = self.direction == "optimizer" and optimizer in TELLING
        return int(self.predicts(stage) and not is_told)

    def num_versions(self, stage: int) -> int:
        """Weight versions that a stage keeps, the current one included."""
        if self.name in ("2bw", "predict", "spectrain1"):
            return 2
        if self.name == "stash":
            return self.warmups[stage] + 1
        if self.name == "spectrain2":
            # A prediction for each micro-batch in flight, none of which is the current version.
            return self.warmups[stage] + 2 if self.warmups[stage] else 1
        if self.name == "vertical-sync":
            return max(self.warmups) + 1
        return 1
