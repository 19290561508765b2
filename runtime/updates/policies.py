"""Policies: the weight policies that this runtime has, by name."""

from __future__ import annotations

from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.updates.predicted import Naive, Predict, SpecTrain1, SpecTrain2
from graphplan_runtime.updates.stashed import DoubleBuffered, Stash, VerticalSync
from graphplan_runtime.updates.weights import Tensors, WeightVersions

POLICIES: dict[str, type[WeightVersions]] = {
    "flush": WeightVersions,
    "local": WeightVersions,
    "naive": Naive,
    "stash": Stash,
    "vertical-sync": VerticalSync,
    "2bw": DoubleBuffered,
    "predict": Predict,
    "spectrain1": SpecTrain1,
    "spectrain2": SpecTrain2,
}


def make_versions(policy: WeightPolicy, stage: int, weights: Tensors) -> WeightVersions:
    """The versions of one stage's weights under a policy."""
    return POLICIES[policy.name](weights, policy, stage)
