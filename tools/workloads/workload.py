"""Workloads: published graphs with costs, as files, and the problems that they pose.

`graphplan/maxload-workload` files hold ops with seconds and bytes, `graphplan/profiled-workload`
files hold profiled training ops. The nouns below are the files. `pose_maxload` makes the task of a
maxload file; profiled.py makes a Problem of a profiled one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import networkx

from graphplan.errors import InvalidFile, InvalidOption
from graphplan.files import decode_noun, format_of, read_bytes, read_header
from graphplan.nouns.base import Noun
from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad


class MaxLoadOp(Noun, frozen=True, kw_only=True):
    """An op of a maxload file."""

    name: str
    seconds: float
    bytes: float = 0.0


class MaxLoadTensor(Noun, frozen=True, kw_only=True):
    """A tensor of a maxload file, by op names."""

    owner: str
    readers: tuple[str, ...]
    seconds: float


class MaxLoadWorkload(Noun, frozen=True, kw_only=True, dict=True):
    """A file that asks for the smallest largest load, the question of `MaxLoad`."""

    format: Literal["graphplan/maxload-workload"] = "graphplan/maxload-workload"
    version: Literal[1] = 1
    name: str
    memory_bytes: float | None = None
    ops: tuple[MaxLoadOp, ...]
    precedence: tuple[tuple[str, str], ...]
    tensors: tuple[MaxLoadTensor, ...]
    optimum_s_by_devices: dict[str, float] = {}
    """Proven optima, where known, by number of devices."""

    def __post_init__(self) -> None:
        _check_numbers((op.name, value) for op in self.ops for value in (op.seconds, op.bytes))
        _check_numbers((tensor.owner, tensor.seconds) for tensor in self.tensors)
        _check_numbers([("memory_bytes", self.memory_bytes or 0.0)])
        known = _check_names(op.name for op in self.ops)
        _check_ends(self.precedence, known)
        _check_ends(((t.owner, reader) for t in self.tensors for reader in t.readers), known)
        self.order  # noqa: B018  a cycle is an error of the file

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Op names in a topological order, the earlier in the file the earlier."""
        return _sort_names([op.name for op in self.ops], self.precedence)


class RecomputedOp(Noun, frozen=True, kw_only=True):
    """The same op when its forward is made again in the backward."""

    seconds: float
    """Of forward and backward."""
    stashed_bytes: float
    fixed_bytes: float


class ProfiledOp(Noun, frozen=True, kw_only=True):
    """An op of a profiled file; bytes are those of the whole measured batch."""

    name: str
    op: str = ""
    forward_s: float
    backward_s: float
    output_bytes: int
    param_bytes: int = 0
    stashed_bytes: float | None = None
    """Kept from the forward to the backward; None: what the op reads."""
    fixed_bytes: float | None = None
    """Held whatever is in flight; None: weights, gradients and optimizer states."""
    recomputed: RecomputedOp | None = None

    @property
    def figures(self) -> tuple[float, ...]:
        """All numbers."""
        again = self.recomputed
        rest = (again.seconds, again.stashed_bytes, again.fixed_bytes) if again else ()
        held = (self.stashed_bytes or 0.0, self.fixed_bytes or 0.0, *rest)
        return self.forward_s, self.backward_s, self.output_bytes, self.param_bytes, *held


class ProfiledEdge(Noun, frozen=True, kw_only=True):
    """One op reads another's output."""

    src: str
    dst: str
    bytes: int


class ProfiledWorkload(Noun, frozen=True, kw_only=True, dict=True):
    """A training graph measured op by op on one device at one batch."""

    format: Literal["graphplan/profiled-workload"] = "graphplan/profiled-workload"
    version: Literal[1] = 1
    name: str
    batch_size: int | None = None
    """Of the measurement; None: it has to be guessed."""
    ops: tuple[ProfiledOp, ...]
    edges: tuple[ProfiledEdge, ...]

    def __post_init__(self) -> None:
        _check_numbers((op.name, value) for op in self.ops for value in op.figures)
        _check_numbers((edge.src, edge.bytes) for edge in self.edges)
        known = _check_names(op.name for op in self.ops)
        _check_ends(self.pairs, known)
        self.order  # noqa: B018  a cycle is an error of the file

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(src, dst) of every edge."""
        return tuple((edge.src, edge.dst) for edge in self.edges)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Op names in a topological order, the earlier in the file the earlier."""
        return _sort_names([op.name for op in self.ops], self.pairs)


Workload = MaxLoadWorkload | ProfiledWorkload


def read_workload(path: Path | str) -> Workload:
    """Read and validate a workload file of either kind."""
    text = read_bytes(Path(path))
    header = read_header(text, name=str(path))
    kinds: dict[str, type[MaxLoadWorkload] | type[ProfiledWorkload]] = {
        format_of(kind): kind for kind in (MaxLoadWorkload, ProfiledWorkload)
    }
    if header.format not in kinds:
        raise InvalidFile(
            f"{path} is a {header.format!r} file, not a workload.",
            remedy=f"Give a file of the format {' or '.join(map(repr, kinds))}.",
        )
    return decode_noun(text, kinds[header.format], name=str(path))


# -- validation ------------------------------------------------------------------------------------


def _check_numbers(named: Iterable[tuple[str, float]]) -> None:
    for name, value in named:
        if not 0 <= value < math.inf:
            raise ValueError(f"{name!r} has the value {value}, must be finite and at least 0")


def _check_names(names: Iterable[str]) -> set[str]:
    counts = Counter(names)
    if not counts:
        raise ValueError("there are no ops")
    for name, count in counts.items():
        if count > 1:
            raise ValueError(f"{count} ops are called {name!r}")
    return set(counts)


def _check_ends(pairs: Iterable[tuple[str, str]], known: set[str]) -> None:
    for src, dst in pairs:
        for name in (src, dst):
            if name not in known:
                raise ValueError(f"{src!r} -> {dst!r} names the op {name!r}, which does not exist")


def _sort_names(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    position = {name: i for i, name in enumerate(names)}
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(pairs)
    try:
        order = networkx.lexicographical_topological_sort(graph, key=position.__getitem__)
        return tuple(order)
    except networkx.NetworkXUnfeasible as error:
        cycle = networkx.find_cycle(graph)
        text = " -> ".join([*(src for src, _ in cycle), cycle[-1][1]])
        raise ValueError(f"the ops wait for each other in a circle: {text}") from error


# -- max load --------------------------------------------------------------------------------------


def pose_maxload(workload: MaxLoadWorkload, num_parts: int) -> MaxLoad:
    """The task of a maxload file for a number of devices; ops in topological order."""
    if num_parts < 1:
        raise InvalidOption(f"{num_parts} devices are too few.", remedy="Use 1 or more.")
    index = {name: i for i, name in enumerate(workload.order)}
    ops = sorted(workload.ops, key=lambda op: index[op.name])
    limit = workload.memory_bytes
    return MaxLoad(
        name=workload.name,
        ops=tuple(
            LoadOp(name=op.name, seconds=op.seconds, bytes=math.ceil(op.bytes)) for op in ops
        ),
        edges=tuple(sorted({(index[src], index[dst]) for src, dst in workload.precedence})),
        tensors=tuple(
            LoadTensor(
                owner=index[tensor.owner],
                readers=tuple(sorted({index[name] for name in tensor.readers})),
                seconds=tensor.seconds,
            )
            for tensor in workload.tensors
        ),
        num_parts=num_parts,
        memory_bytes=None if limit is None else math.floor(limit),
    )
