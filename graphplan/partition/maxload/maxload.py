"""MaxLoad: cut a graph into few parts so that the heaviest one is as light as possible.

The steady-state view of pipelines (Tarnawski et al., NeurIPS 2020): one part a device, no replicas,
no schedule. The *load* of a part is the seconds of its ops plus, once for each tensor that has ends
both inside and outside of the part, the seconds to move it; an end is the owner or a reader. Parts
can be ordered so that every edge points from a part to itself or to a later one.
"""

from __future__ import annotations

import math
from functools import cached_property

from graphplan.nouns.base import Noun
from graphplan.nouns.dag import Neighbours, collect_neighbours


class LoadOp(Noun, frozen=True, kw_only=True):
    """What goes into one part as a whole."""

    name: str
    seconds: float
    bytes: int = 0
    """Memory that it takes on its device."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf or self.bytes < 0:
            raise ValueError(f"op {self.name!r} needs finite seconds and bytes of at least 0")


class LoadTensor(Noun, frozen=True, kw_only=True):
    """A tensor between ops; which way it flows does not matter to the loads."""

    owner: int
    readers: tuple[int, ...]
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"the tensor of op {self.owner} takes {self.seconds} seconds")

    @property
    def ends(self) -> frozenset[int]:
        """Its owner and its readers."""
        return frozenset((self.owner, *self.readers))


class MaxLoad(Noun, frozen=True, kw_only=True, dict=True):
    """Ops in a topological order, and at most `num_parts` parts of at most `memory_bytes`."""

    name: str
    ops: tuple[LoadOp, ...]
    edges: tuple[tuple[int, int], ...]
    """Sorted, different, src < dst: the part of src is that of dst or an earlier one."""
    tensors: tuple[LoadTensor, ...]
    num_parts: int
    memory_bytes: int | None = None
    """None when memory does not matter."""

    def __post_init__(self) -> None:
        if not self.ops:
            raise ValueError("there is no op to place")
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}, must be at least 1")
        if list(self.edges) != sorted(set(self.edges)):
            raise ValueError("edges must be sorted and different")
        for src, dst in self.edges:
            if not 0 <= src < dst < len(self.ops):
                raise ValueError(f"edge {src} -> {dst} does not point to a later op")
        for tensor in self.tensors:
            if not all(0 <= op < len(self.ops) for op in tensor.ends):
                raise ValueError(f"a tensor of op {tensor.owner} has an end that does not exist")

    @property
    def num_ops(self) -> int:
        """How many ops there are to place."""
        return len(self.ops)

    @cached_property
    def seconds(self) -> float:
        """The work of all ops."""
        return math.fsum(op.seconds for op in self.ops)

    @cached_property
    def predecessors(self) -> Neighbours:
        """Ops that must not come in a later part."""
        return collect_neighbours(self.num_ops, ((dst, src) for src, dst in self.edges))

    @cached_property
    def successors(self) -> Neighbours:
        """Ops that must not come in an earlier part."""
        return collect_neighbours(self.num_ops, self.edges)

    @cached_property
    def tensors_by_op(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the tensors that have an end at each op."""
        return collect_neighbours(
            self.num_ops, ((op, i) for i, tensor in enumerate(self.tensors) for op in tensor.ends)
        )


class PartsAnswer(Noun, frozen=True, kw_only=True):
    """Parts in an order that the edges allow, their largest load, and what no cut can beat."""

    solver: str
    parts: tuple[tuple[int, ...], ...]
    """Ops of every part, sorted; no part is empty."""
    value_s: float
    bound_s: float
    proven: bool
    """Whether value_s is the optimum, up to rounding of sums."""
    note: str = ""

    @property
    def gap(self) -> float:
        """value / bound - 1."""
        return self.value_s / self.bound_s - 1 if self.bound_s else 0.0
