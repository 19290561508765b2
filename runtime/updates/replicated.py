"""Replicated: what replicas of a stage reduce and share, as a plan says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from graphplan.errors import InvalidOption
from graphplan.nouns.buckets import order_gradients
from graphplan.nouns.policy import WeightPolicy
from graphplan_runtime.faults.status import Status
from graphplan_runtime.messages.transport import Group, Transport
from graphplan_runtime.updates.buckets import (
    Bucket,
    make_buckets,
    share_by_slices,
    share_by_weights,
)
from graphplan_runtime.updates.holdings import Holdings
from graphplan_runtime.updates.reducers import Reducer, ScatteringReducer, SharedReducer
from graphplan_runtime.updates.shards import Shards
from graphplan_runtime.updates.sharing import find_sharing, give_pieces


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replicated:
    """What does not depend on the stage."""

    holdings: Holdings
    transport: Transport
    policy: WeightPolicy
    bucket_bytes: int
    status: Status

    def make_shards(
        self,
        stage: int,
        named: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer | None,
    ) -> Shards | None:
        """The pieces of this replica, which the optimizer gets; None where nothing is shared."""
        level = self.holdings.stages.stages[stage].zero
        if not level:
            return None
        if self.policy.name != "flush":
            raise InvalidOption(
                f"Stage {stage} shares its state among replicas (zero {level}), and the policy"
                f" {self.policy.name} keeps versions of the weights that they would have to share.",
                remedy="Search again with --zero 0, or with --policy flush.",
            )
        if optimizer is None:
            raise InvalidOption(
                f"Stage {stage} shares its state among replicas (zero {level}), which is for an"
                " optimizer, and there is none.",
                remedy="Give Pipeline(..., optimizer=...), or search again with --zero 0.",
            )
        group = self._group(stage)
        by_slices = find_sharing(optimizer) == "slices"
        share = share_by_slices if by_slices else share_by_weights
        made = Shards(
            share(self._make_buckets(stage, named), len(group)),
            group,
            self.transport,
            names={parameter: name for name, parameter in named.items()},
            keeps_weights=level < 3,
            by_slices=by_slices,
        )
        give_pieces(optimizer, made.list_pieces())
        return made

    def make_reducer(
        self, stage: int, named: Mapping[str, nn.Parameter], shards: Shards | None
    ) -> Reducer | None:
        """What reduces the gradients of a stage; None where every replica has its own."""
        group = self._group(stage)
        if len(group) == 1 or self.policy.name == "local":
            return None
        if shards is None:
            return Reducer(self._make_buckets(stage, named), group, self.transport)
        level = self.holdings.stages.stages[stage].zero
        kind = SharedReducer if level == 1 else ScatteringReducer
        return kind(shards, group, self.transport, waiting=self.status.waiting)

    def _group(self, stage: int) -> Group:
        return tuple(sorted(self.holdings.stages.stages[stage].devices))

    def _make_buckets(self, stage: int, named: Mapping[str, nn.Parameter]) -> list[Bucket]:
        ops = self.holdings.stages.stages[stage].ops
        order = [name for name in order_gradients(self.holdings.graph, ops) if name in named]
        return make_buckets([named[name] for name in order], self.bucket_bytes)
