"""Problem: what the solvers cut, one frozen value for all of them.

Its nodes are groups of ops that stay together, numbered in a topological order. Times and bytes are
read-only numpy arrays; an axis called *size* runs along `sample_sizes`, the numbers of samples that
one replica may see, an axis called *type* along `cluster.types`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy
from numpy.typing import NDArray

from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.dag import Neighbours, collect_neighbours
from graphplan.nouns.stages import ZeroLevel
from graphplan.nouns.tensor import TensorSpec
from graphplan.nouns.training import Training

Floats = NDArray[numpy.float64]
Ints = NDArray[numpy.int64]
Recompute = Literal["none", "auto", "full"]
"""Whether stages recompute their activations: never, where the search likes it, all of them."""


class Node(Noun, frozen=True, kw_only=True):
    """A group of ops that moves as one."""

    name: str
    ops: tuple[str, ...]


class Flow(Noun, frozen=True, kw_only=True):
    """A tensor that one node (or the user, when owner is None) makes and other nodes read."""

    value: str
    owner: int | None
    readers: tuple[int, ...]
    """Sorted; the owner is not among them."""
    spec: TensorSpec
    needs_grad: bool
    bytes_by_size: tuple[int, ...]

    @property
    def batched(self) -> bool:
        """Whether replicas hold different rows of it."""
        return self.spec.has_batch

    def buffer_bytes(self, size: int) -> int:
        """Room for the tensor and for the gradient that comes back, at a position of sizes."""
        return self.bytes_by_size[size] * (2 if self.needs_grad else 1)


class Save(Noun, frozen=True, kw_only=True):
    """A storage kept for the backward of the nodes `savers`; a stage holds it once."""

    savers: tuple[int, ...]
    bytes_by_size: tuple[int, ...]


class Tie(Noun, frozen=True, kw_only=True):
    """A weight that several nodes read; a stage holds it once, several stages add its gradients."""

    weight: str
    readers: tuple[int, ...]
    trained_elements: int
    held_bytes: int


class Miniature(Noun, frozen=True, kw_only=True):
    """What a problem in miniature stands for: each of its devices for `times` devices of a larger
    cluster, which do the same at the same time with a share of the batch each, and meet only when
    they reduce gradients.

        apart       0 1 2 3 | 4 5 6 7   two equal groups of nodes: device 1 stands for 1 and 5
        adjacent    0 1 | 2 3 | 4 5 | 6 7   units of neighbours: device 1 stands for 2 and 3
    """

    cluster: Cluster
    """The larger one."""
    times: int
    adjacent: bool

    def enlarge(self, devices: Sequence[int]) -> tuple[int, ...]:
        """The devices for which these stand, so that equal replicas stay neighbours in order."""
        if self.adjacent:
            return tuple(device * self.times + i for device in devices for i in range(self.times))
        stride = len(self.cluster.devices) // self.times
        return tuple(group * stride + device for group in range(self.times) for device in devices)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A graph of nodes with costs, a cluster, and what the user wants."""

    name: str
    fingerprint: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    """Sorted, different, src < dst."""
    cluster: Cluster
    training: Training
    micro_batch_sizes: tuple[int, ...]
    """Candidates for the samples of a micro-batch, over all replicas of a stage."""
    sample_sizes: tuple[int, ...]
    forward_s: Floats
    """[type, size, node]"""
    input_grad_s: Floats
    """[type, size, node]"""
    weight_grad_s: Floats
    """[type, size, node]"""
    workspace_bytes: Ints
    """[size, node]"""
    saved_bytes: Ints
    """[size, node]: kept for the backward besides `saves`"""
    saved_for_weights_bytes: Ints
    """[size, node]: what the weight gradients still need after the input gradients"""
    trained_elements: Ints
    """[node]: elements of trainable weights that only this node reads"""
    held_bytes: Ints
    """[node]: bytes of frozen weights, buffers and constants that only this node reads"""
    element_bytes: int
    """Bytes of one trained element in the precision of compute."""
    needs_backward: NDArray[numpy.bool_]
    """[node]"""
    flows: tuple[Flow, ...]
    saves: tuple[Save, ...] = ()
    ties: tuple[Tie, ...] = ()
    recompute: Recompute = "auto"
    pins: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Device by node, for nodes that the user placed."""
    zero_levels: tuple[ZeroLevel, ...] = (0,)
    """What replicas may share, rising."""
    miniature: Miniature | None = None
    """The larger problem that this one stands for, if any."""

    def __post_init__(self) -> None:
        for src, dst in self.edges:
            if not 0 <= src < dst < len(self.nodes):
                raise ValueError(f"edge {src} -> {dst} does not point to a later node")
        shape = (len(self.cluster.types), len(self.sample_sizes), len(self.nodes))
        for array in (self.forward_s, self.input_grad_s, self.weight_grad_s):
            if array.shape != shape:
                raise ValueError(f"times have shape {array.shape}, must be {shape}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, numpy.ndarray):
                value.setflags(write=False)

    @property
    def allow_recompute(self) -> bool:
        """Whether it is a choice of each stage."""
        return self.recompute == "auto"

    @property
    def num_stood_for(self) -> int:
        """Devices for which those of the cluster stand: themselves but in a miniature."""
        return len(
            self.cluster.devices if self.miniature is None else self.miniature.cluster.devices
        )

    @property
    def usual_zero(self) -> ZeroLevel:
        """The level at which drafts are estimated: optimizer states are most of the bytes."""
        return 1 if 1 in self.zero_levels else self.zero_levels[-1]

    @property
    def num_nodes(self) -> int:
        """How many nodes there are to place."""
        return len(self.nodes)

    @cached_property
    def predecessors(self) -> Neighbours:
        """Nodes that each node reads from."""
        return collect_neighbours(self.num_nodes, ((dst, src) for src, dst in self.edges))

    @cached_property
    def successors(self) -> Neighbours:
        """Nodes that read from each node."""
        return collect_neighbours(self.num_nodes, self.edges)

    @cached_property
    def size_index(self) -> dict[int, int]:
        """Position of each number of samples in `sample_sizes`."""
        return {size: i for i, size in enumerate(self.sample_sizes)}

    @cached_property
    def type_index_by_device(self) -> tuple[int, ...]:
        """Position of each device's type in `cluster.types`."""
        position = {kind.name: i for i, kind in enumerate(self.cluster.types)}
        return tuple(position[device.type.name] for device in self.cluster.devices)

    @cached_property
    def flows_by_node(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the flows that each node owns or reads."""
        return collect_neighbours(
            self.num_nodes,
            (
                (node, i)
                for i, flow in enumerate(self.flows)
                for node in (*flow.readers, *(() if flow.owner is None else (flow.owner,)))
            ),
        )

    @cached_property
    def saves_by_node(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the saves that each node needs."""
        return collect_neighbours(
            self.num_nodes, ((node, i) for i, save in enumerate(self.saves) for node in save.savers)
        )

    @cached_property
    def ties_by_node(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the ties that each node reads."""
        return collect_neighbours(
            self.num_nodes, ((node, i) for i, tie in enumerate(self.ties) for node in tie.readers)
        )
