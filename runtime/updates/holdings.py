"""Holdings: which stages and devices hold which weights, and who answers for each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.stages import StageGraph
from graphplan_runtime.messages.transport import Group

T = TypeVar("T")
TIED = -1
"""In place of a stage: the weights that several stages hold."""


@dataclasses.dataclass(frozen=True)
class Holdings:
    """Everything follows from the graph and the stages: every rank knows it of all ranks."""

    graph: OpGraph
    stages: StageGraph

    @cached_property
    def stages_by_weight(self) -> dict[str, tuple[int, ...]]:
        """The stages that read each weight."""
        stage_by_op = {op: s for s, stage in enumerate(self.stages.stages) for op in stage.ops}
        found: dict[str, set[int]] = {}
        for op in self.graph.ops:
            for name in (*op.weights, *op.mutates):
                weight = self.graph.weight_by_name[name].name
                found.setdefault(weight, set()).add(stage_by_op[op.name])
        return {name: tuple(sorted(stages)) for name, stages in found.items()}

    @cached_property
    def trained(self) -> frozenset[str]:
        """Weights that get a gradient: trainable, and read by an op that the gradient passes."""
        read = {
            self.graph.weight_by_name[name].name
            for op in self.graph.ops
            if op.needs_backward
            for name in op.weights
        }
        return frozenset(name for name in read if self.graph.weight_by_name[name].trainable)

    @cached_property
    def tied(self) -> frozenset[str]:
        """Trained weights that several stages hold."""
        return frozenset(n for n in self.trained if len(self.stages_by_weight[n]) > 1)

    def sort_trained(
        self, named_by_stage: Mapping[int, Mapping[str, T]]
    ) -> dict[int, dict[str, T]]:
        """Those that get a gradient, by the stage that updates them."""
        found: dict[int, dict[str, T]] = {}
        for stage, named in named_by_stage.items():
            for name, each in named.items():
                if name in self.trained:
                    found.setdefault(TIED if name in self.tied else stage, {})[name] = each
        return found

    def devices_of(self, weight: str) -> Group:
        """All devices that hold a weight, replicas included."""
        stages = self.stages_by_weight[weight]
        return tuple(sorted({d for s in stages for d in self.stages.stages[s].devices}))

    def owner_of(self, weight: str) -> int:
        """The device that counts and saves a weight: the first replica of its first stage."""
        return self.stages.stages[self.stages_by_weight[weight][0]].devices[0]

    @cached_property
    def updating_stages(self) -> tuple[int, ...]:
        """Stages that have a backward, and so updates."""
        flowing = {op.name for op in self.graph.ops if op.needs_backward}
        stages = enumerate(self.stages.stages)
        return tuple(s for s, stage in stages if not flowing.isdisjoint(stage.ops))

    @cached_property
    def sharing_stages(self) -> tuple[int, ...]:
        """Stages whose replicas share their state."""
        return tuple(s for s in self.updating_stages if self.stages.stages[s].zero)

    @cached_property
    def updating(self) -> Group:
        """Devices of the stages that have updates."""
        found = (self.stages.stages[s].devices for s in self.updating_stages)
        return tuple(sorted({device for devices in found for device in devices}))

    @property
    def joins_stages(self) -> bool:
        """Whether several stages of one device hold a tied weight, of which there is one copy."""
        for name in self.tied:
            devices = [self.stages.stages[s].devices for s in self.stages_by_weight[name]]
            if len(set(devices)) < len(devices):
                return True
        return False

    @property
    def num_replicas(self) -> int:
        """Replicas of the whole pipeline, where all stages have as many."""
        return len(self.stages.stages[0].devices)

    def replica_of(self, device: int) -> int:
        """To which replica of the pipeline a device belongs."""
        return next(s.devices.index(device) for s in self.stages.stages if device in s.devices)

    def replica_group(self, weight: str, device: int) -> Group:
        """The devices of one replica of the pipeline that hold a weight."""
        replica = self.replica_of(device)
        holders = (self.stages.stages[s] for s in self.stages_by_weight[weight])
        return tuple(sorted({stage.devices[replica] for stage in holders}))

    def list_replica_groups(self) -> Iterable[Group]:
        """Groups that hold the same tied weights within one replica of the pipeline."""
        for weight in sorted(self.tied):
            for device in self.devices_of(weight):
                group = self.replica_group(weight, device)
                if len(group) > 1:
                    yield group

    def list_groups(self) -> Iterable[Group]:
        """Groups of devices that hold the same weights, larger than one device."""
        for weight in self.stages_by_weight:
            devices = self.devices_of(weight)
            if len(devices) > 1:
                yield devices
        for stage in self.stages.stages:
            if len(stage.devices) > 1:
                yield tuple(sorted(stage.devices))
