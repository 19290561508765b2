"""OpGraph: the DAG of ops of one training forward pass (the loss included when there is one).

Three kinds of names live here and never overlap in meaning: a *value* is what an op or a model
input produces (value name = op name or input name); a *weight* is a parameter, buffer or constant,
named by its path in the module; an *op* reads values and weights and produces one value. Ops with
several results (split, LSTM) produce a value without a tensor; the `getitem` ops that follow it
carry the tensors.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from graphplan.nouns.base import Noun
from graphplan.nouns.names import (
    MAX_CALL,
    MAX_TARGET,
    check_label,
    check_paths,
    check_text,
    check_values,
)
from graphplan.nouns.tensor import TensorSpec

if TYPE_CHECKING:
    import networkx

BatchKind = Literal["dynamic", "fixed", "none"]
MixingKind = Literal["compare", "statistics", "order", "count", "sum"]
"""Samples are compared with each other; their statistics are used; they are moved or picked by
their place in the batch; a mean is over a count that values decide; a sum is no mean."""


class Input(Noun, frozen=True, kw_only=True):
    """A tensor that the user feeds: its value name and where it sits in the model's arguments."""

    name: str
    path: str
    spec: TensorSpec

    def __post_init__(self) -> None:
        check_values((self.name,))
        check_text(self.path, most=MAX_TARGET)


class Weight(Noun, frozen=True, kw_only=True):
    """A parameter, buffer or constant; tied ones appear once, their other names as aliases."""

    name: str
    kind: Literal["parameter", "buffer", "constant"]
    spec: TensorSpec
    trainable: bool
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_paths((self.name, *self.aliases))


class Op(Noun, frozen=True, kw_only=True):
    """A node of the captured graph.

    `call` is the call with `%i` for inputs[i] and `@i` for weights[i]; together with the shapes it
    is the op's signature. `saved` lists the values that autograd keeps for this op's backward (the
    owners of their storages; weights are not listed), `saved_bytes` what it keeps besides (masks,
    statistics) as (constant, per sample).
    """

    name: str
    target: str
    call: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    output: TensorSpec | None = None
    expected: TensorSpec | None = None
    """What costs take the output for where its size depends on values; `output` is then None."""
    module: str = ""
    needs_backward: bool = False
    """Whether the gradient of the loss flows through this op's output."""
    alias: str | None = None
    """The value or weight whose storage this op's output shares, None when it owns its storage."""
    saved: tuple[str, ...] = ()
    saved_bytes: tuple[int, int] = (0, 0)
    mutates: tuple[str, ...] = ()
    """Weights (buffers) that this op writes."""

    def __post_init__(self) -> None:
        check_values((self.name,))
        check_text(self.target, most=MAX_TARGET)
        check_text(self.call, most=MAX_CALL)
        if self.module:
            check_paths((self.module,))

    @property
    def size(self) -> TensorSpec | None:
        """The output, or what it is expected to be; None when it is not one tensor."""
        return self.output or self.expected

    @property
    def kind(self) -> str:
        """The target without overload: `aten.linear.default` -> `linear`."""
        parts = self.target.split(".")
        return parts[1] if len(parts) > 1 else self.target


class Assumption(Noun, frozen=True, kw_only=True):
    """What the capture fixed because the example's values decided it."""

    kind: str
    text: str
    source: str | None = None


class Mixing(Noun, frozen=True, kw_only=True):
    """An op whose result for one sample depends on other samples, and in which way."""

    op: str
    kind: MixingKind


class Edge(Noun, frozen=True, kw_only=True):
    """A tensor flowing between two ops."""

    src: str
    dst: str
    spec: TensorSpec | None


class OpGraph(Noun, frozen=True, kw_only=True, dict=True):
    """The DAG; `ops` is in a topological order, the order in which the model runs."""

    format: Literal["graphplan/graph"] = "graphplan/graph"
    version: Literal[1] = 1
    name: str
    batch: BatchKind
    """dynamic: any batch size; fixed: `batch_size` only; none: inputs without a batch dimension."""
    batch_size: int
    """The batch size of the example that was captured (1 when there is no batch dimension)."""
    inputs: tuple[Input, ...]
    weights: tuple[Weight, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    """Values that the model returns, in the order of its flattened output."""
    output_tree: str = ""
    loss: str | None = None
    """The value that is the scalar loss, None when the graph has none."""
    assumptions: tuple[Assumption, ...] = ()
    mixing: tuple[Mixing, ...] = ()
    """What a split of the batch changes, as far as a dynamic batch tells; not part of the
    fingerprint."""
    capture: str = ""
    """How it was captured: method and torch version; not part of the fingerprint."""

    def __post_init__(self) -> None:
        check_label(self.name)
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}, must be at least 1")
        weights = {weight.name for weight in self.weights}
        if len(weights) != len(self.weights):
            raise ValueError("two weights have the same name")
        values = {given.name for given in self.inputs}
        if len(values) != len(self.inputs):
            raise ValueError("two inputs have the same name")
        for op in self.ops:
            self._validate_op(op, values, weights)
            values.add(op.name)
        ends = (*self.outputs, *([self.loss] if self.loss else []), *(m.op for m in self.mixing))
        for name in ends:
            if name not in values:
                raise ValueError(f"the graph returns {name!r}, which no op produces")

    @staticmethod
    def _validate_op(op: Op, values: set[str], weights: set[str]) -> None:
        if op.name in values:
            raise ValueError(f"two values are called {op.name!r}")
        for name in (*op.inputs, *(name for name in op.saved if name != op.name)):
            if name not in values:
                raise ValueError(f"op {op.name!r} reads {name!r} before anything produces it")
        if op.alias is not None and op.alias not in values and op.alias not in weights:
            raise ValueError(f"op {op.name!r} is a view of {op.alias!r}, which nothing produces")
        for name in (*op.weights, *op.mutates):
            if name not in weights:
                raise ValueError(f"op {op.name!r} uses the unknown weight {name!r}")
        if min(op.saved_bytes) < 0:
            raise ValueError(f"op {op.name!r} saves a negative number of bytes")

    @cached_property
    def op_by_name(self) -> dict[str, Op]:
        """Ops by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def weight_by_name(self) -> dict[str, Weight]:
        """Weights by name, aliases included."""
        named = {weight.name: weight for weight in self.weights}
        return named | {alias: weight for weight in self.weights for alias in weight.aliases}

    @cached_property
    def input_by_name(self) -> dict[str, Input]:
        """Model inputs by value name."""
        return {given.name: given for given in self.inputs}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every (producer, consumer) pair of ops once, in the order of the consumers."""
        ops = self.op_by_name
        return tuple(
            Edge(src=name, dst=op.name, spec=ops[name].output)
            for op in self.ops
            for name in dict.fromkeys(op.inputs)
            if name in ops
        )

    def spec_of(self, value: str) -> TensorSpec | None:
        """The tensor of a value, None for values that are not one tensor."""
        given = self.input_by_name.get(value)
        return given.spec if given else self.op_by_name[value].output

    def size_of(self, value: str) -> TensorSpec | None:
        """The tensor of a value as costs take it: the expected one where values tell its size."""
        given = self.input_by_name.get(value)
        return given.spec if given else self.op_by_name[value].size

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides what the model computes; a plan is valid for this graph only."""
        text = msgspec.json.encode(
            (self.batch, self.inputs, self.weights, self.ops, self.outputs, self.loss)
        )
        return hashlib.sha256(text).hexdigest()[:16]

    def to_networkx(self) -> networkx.DiGraph:
        """A networkx view: nodes carry `op`, edges carry `spec`."""
        import networkx

        view = networkx.DiGraph(name=self.name)
        view.add_nodes_from((op.name, {"op": op}) for op in self.ops)
        view.add_edges_from((edge.src, edge.dst, {"spec": edge.spec}) for edge in self.edges)
        return view
