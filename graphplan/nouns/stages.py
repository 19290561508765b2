"""StageGraph: convex sets of ops with their devices, and the tensors that flow between them."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, get_args

import msgspec

from graphplan.nouns.base import Noun
from graphplan.nouns.dag import Neighbours, collect_neighbours, measure_heights
from graphplan.nouns.names import check_values
from graphplan.nouns.tensor import TensorSpec

ZeroLevel = Literal[0, 1, 2, 3]
"""What replicas shard among themselves: nothing, optimizer states, gradients as well, weights as
well."""
ZERO_LEVELS: tuple[ZeroLevel, ...] = get_args(ZeroLevel)


class Stage(Noun, frozen=True, kw_only=True):
    """Ops that run as a unit. Several devices mean replicas: every micro-batch is split evenly over
    them and their gradients are reduced."""

    ops: tuple[str, ...]
    devices: tuple[int, ...]
    micro_batch_size: int
    """Samples of one micro-batch, over all replicas."""
    zero: ZeroLevel = 0
    recompute: tuple[str, ...] = ()
    """Ops whose results the backward computes again instead of keeping them, in the order of
    `ops`."""

    def __post_init__(self) -> None:
        check_values(self.ops)
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise ValueError(f"a stage needs different devices, got {list(self.devices)}")
        if self.micro_batch_size < 1:
            raise ValueError(f"micro_batch_size is {self.micro_batch_size}, must be at least 1")
        if self.zero and len(self.devices) == 1:
            raise ValueError(f"zero {self.zero} shards over replicas, and a stage has one device")
        again = set(self.recompute)
        if tuple(op for op in self.ops if op in again) != self.recompute:
            raise ValueError("the recomputed ops are not ops of the stage in its order")


class StageEdge(Noun, frozen=True, kw_only=True):
    """A tensor that one stage produces and another reads; sent once however many ops read it."""

    src: int
    dst: int
    value: str
    spec: TensorSpec
    needs_grad: bool = True
    """Whether a gradient comes back along this edge."""

    def __post_init__(self) -> None:
        check_values((self.value,))


class StageGraph(Noun, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """The DAG of stages; a stage's number is its position, and edges point to higher numbers.

    Two stages have the same devices or no device in common.
    """

    stages: tuple[Stage, ...]
    edges: tuple[StageEdge, ...]

    def __post_init__(self) -> None:
        groups: dict[int, tuple[int, ...]] = {}
        for stage in self.stages:
            for device in stage.devices:
                if groups.setdefault(device, stage.devices) != stage.devices:
                    raise ValueError(
                        f"device {device} is in {list(groups[device])} and {list(stage.devices)};"
                        " two stages must share all their devices or none"
                    )
        for edge in self.edges:
            if not 0 <= edge.src < edge.dst < len(self.stages):
                raise ValueError(f"edge {edge.src} -> {edge.dst} does not point to a later stage")

    @cached_property
    def predecessors(self) -> Neighbours:
        """Stages that each stage reads from."""
        return collect_neighbours(len(self.stages), ((e.dst, e.src) for e in self.edges))

    @cached_property
    def successors(self) -> Neighbours:
        """Stages that read from each stage."""
        return collect_neighbours(len(self.stages), ((e.src, e.dst) for e in self.edges))

    @cached_property
    def edges_by_ends(self) -> dict[tuple[int, int], tuple[StageEdge, ...]]:
        """The tensors between each pair of connected stages."""
        found: dict[tuple[int, int], list[StageEdge]] = {}
        for edge in self.edges:
            found.setdefault((edge.src, edge.dst), []).append(edge)
        return {ends: tuple(edges) for ends, edges in found.items()}

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """h(s): the longest path in edges from each stage to a sink."""
        return measure_heights(self.successors)


class _OldStage(Noun, frozen=True, kw_only=True):
    """A stage in a plan of version 1."""

    ops: tuple[str, ...]
    devices: tuple[int, ...]
    micro_batch_size: int
    recompute: bool = False


class _OldStageGraph(Noun, frozen=True, kw_only=True):
    """The stages of a plan of version 1."""

    stages: tuple[_OldStage, ...]
    edges: tuple[StageEdge, ...]


def upgrade_stages(text: msgspec.Raw) -> msgspec.Raw:
    """The stage graph of a plan of version 1, whose stages recomputed all of their ops or none."""
    old = msgspec.json.decode(text, type=_OldStageGraph)
    stages = tuple(
        Stage(
            ops=each.ops,
            devices=each.devices,
            micro_batch_size=each.micro_batch_size,
            recompute=each.ops if each.recompute else (),
        )
        for each in old.stages
    )
    return msgspec.Raw(msgspec.json.encode(StageGraph(stages=stages, edges=old.edges)))
