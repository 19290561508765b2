"""Scalars: every number that the model derives from shapes becomes a function of the batch size b.

A symbolic size is no op: it costs nothing and any stage may need it. Sizes are affine in b
("6*b"), so a stage needs b alone, which it reads off any of its tensors with a batch dimension.
Numbers that come from the contents of a tensor (`.item()`) stay ops.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from graphplan.frontend.nodes import fake_value, is_scalar
from graphplan.nouns.tensor import Dim, TensorSpec, format_dim, parse_dim

_PROBES = (1, 2, 3, 5, 8, 13, 64)
"""Batch sizes at which an expression must agree with its affine form."""


class NotAffine(Exception):
    """A size that is not a multiple of the batch size plus a constant."""


class BatchSizes:
    """Rewrites sizes in the tracer's symbols as sizes in b."""

    def __init__(self, dims: Mapping[sympy.Symbol, Dim]) -> None:
        self._dims = {symbol: parse_dim(dim) for symbol, dim in dims.items()}
        self._known: dict[sympy.Expr, tuple[int, int]] = {}

    def fit_size(self, size: int | torch.SymInt) -> tuple[int, int]:
        """(scale, offset) of a size; raises NotAffine."""
        if isinstance(size, int):
            return 0, size
        expression = size.node.expr
        if expression not in self._known:
            self._known[expression] = self._fit(expression)
        return self._known[expression]

    def _fit(self, expression: sympy.Expr) -> tuple[int, int]:
        values = [self._evaluate(expression, probe) for probe in _PROBES]
        scale = values[2] - values[1]
        offset = values[1] - scale * _PROBES[1]
        if any(scale * b + offset != value for b, value in zip(_PROBES, values, strict=True)):
            raise NotAffine(str(expression))
        return scale, offset

    def _evaluate(self, expression: sympy.Expr, batch_size: int) -> int:
        sizes = {
            symbol: sympy.Integer(scale * batch_size + offset)
            for symbol, (scale, offset) in self._dims.items()
        }
        try:
            return int(expression.xreplace(sizes))
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise NotAffine(str(expression)) from error


def learn_sizes(tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec]) -> BatchSizes:
    """How the tracer's symbols depend on b, from the inputs that it traced with."""
    dims: dict[sympy.Symbol, Dim] = {}
    for tensor, spec in zip(tensors, specs, strict=True):
        for size, dim in zip(tensor.shape, spec.shape, strict=True):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if isinstance(expression, sympy.Symbol):
                dims.setdefault(expression, dim)
    return BatchSizes(dims)


def unbacked_symbols(value: Any) -> set[sympy.Symbol]:
    """The symbols of a scalar, or of the sizes of a tensor, that stand for contents of tensors."""
    return set(free_unbacked_symbols(value))


def depends_on_data(value: Any) -> bool:
    """Whether a scalar, or a size of a tensor, comes from the contents of a tensor."""
    return bool(unbacked_symbols(value))


def largest_size(size: Any) -> int:
    """A size as a number; one that comes from data counts as large as it can be, one without a
    bound as 1."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    if expression is None:
        return int(size)
    ranges = size.node.shape_env.var_to_range
    bounds = {symbol: ranges[symbol].upper for symbol in expression.free_symbols}
    found = expression.xreplace({s: b if b.is_Integer else 1 for s, b in bounds.items()})
    return int(found)


class ScalarWriter:
    """Writes scalar nodes into a graph, each different one once."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._written: dict[tuple[int, int], fx.Node] = {}

    @property
    def has_batch_size(self) -> bool:
        """Whether the batch size is known."""
        return (1, 0) in self._written

    def read_batch_size(self, tensor: fx.Node, spec: TensorSpec) -> None:
        """Take the batch size from a tensor with a batch dimension."""
        dims = [(*parse_dim(dim), index) for index, dim in enumerate(spec.shape)]
        scale, offset, index = min(dim for dim in dims if dim[0])
        size = self._write(torch.ops.aten.sym_size.int, (tensor, index), (scale, offset))
        if offset:
            size = self._write(operator.sub, (size, offset), (scale, 0))
        if scale != 1:
            self._write(operator.floordiv, (size, scale), (1, 0))

    def write_affine(self, scale: int, offset: int) -> fx.Node | int:
        """A node that holds scale * b + offset; a number where that is constant."""
        if scale == 0:
            return offset
        if (scale, offset) in self._written:
            return self._written[scale, offset]
        if offset:
            return self._write(operator.add, (self.write_affine(scale, 0), offset), (scale, offset))
        return self._write(operator.mul, (self._written[1, 0], scale), (scale, offset))

    def _write(self, target: Any, args: Any, affine: tuple[int, int]) -> fx.Node:
        scale, offset = affine
        name = "batch_size" + (f"_x{scale}" if scale != 1 else "")
        name += f"_{'plus' if offset > 0 else 'minus'}_{abs(offset)}" if offset else ""
        node = self.graph.create_node("call_function", target, args, {}, name=name)
        node.meta = {"affine": affine}
        self._written[affine] = node
        return node


def is_scalar_node(node: fx.Node) -> bool:
    """Whether a node of a normalised graph is a function of the batch size."""
    return "affine" in node.meta or node.meta.get("scalar", False)


def rewrite_scalars(
    graph: fx.Graph, specs: Mapping[str, TensorSpec], sizes: BatchSizes
) -> fx.Graph:
    """The same graph with all scalars computed from one node; inputs without a spec go.

    Ops are numbered anew, each kind in the order of the graph: torch.export counts what is gone.
    """
    fresh = fx.Graph()
    writer = ScalarWriter(fresh)
    copies: dict[fx.Node, Any] = {}
    for node in graph.find_nodes(op="placeholder"):
        if node.name in specs:
            copies[node] = fresh.node_copy(node)
    for node, copy in copies.items():
        if specs[node.name].has_batch and not writer.has_batch_size:
            writer.read_batch_size(copy, specs[node.name])
    for node in graph.nodes:
        value = fake_value(node)
        if node.op == "placeholder":
            continue
        if isinstance(value, torch.SymInt) and not depends_on_data(value):
            copies[node] = writer.write_affine(*sizes.fit_size(value))
            continue
        copies[node] = _copy_numbered(fresh, node, copies)
        if is_scalar(value) and not depends_on_data(value):
            copies[node].meta["scalar"] = True
    return fresh


def _copy_numbered(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, Any]) -> fx.Node:
    kind = re.sub(r"(_\d+)+$", "", node.name)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: copies[given])
    copy = graph.create_node(node.op, node.target, args, kwargs, name=kind)
    copy.meta = dict(node.meta)
    return copy


def format_affine(node: fx.Node) -> str:
    """The text of an affine scalar: `6*b`."""
    scale, offset = node.meta["affine"]
    return str(format_dim(scale, offset))
