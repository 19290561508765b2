"""Policies: the weight policies that this runtime has, by name."""

from __future__ import annotations

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.weights import Tensors, WeightVersions

POLICIES: dict[str, type[WeightVersions]] = {"flush": WeightVersions}


def make_versions(policy: WeightPolicy, stage: int, weights: Tensors) -> WeightVersions:
    """The versions of one stage's weights under a policy."""
    if policy.name not in POLICIES:
        raise InvalidOption(
            f"This runtime does not have the weight policy {policy.name!r}.",
            remedy=f"Search with --policy {sorted(POLICIES)[0]}.",
        )
    return POLICIES[policy.name](weights)
