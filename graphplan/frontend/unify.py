"""Unification: traces at several fixed batch sizes become one graph for any batch size.

The way out for models that use the batch size as a plain number (`torch.arange(len(x))`), which a
symbolic trace cannot follow. The traces must be alike op for op; a number that differs must be
affine in the batch size at all traced sizes. Unlike a symbolic trace this is no proof: a size such
as `min(b, 64)` looks constant or linear until the batch is larger. The graph therefore says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from graphplan.frontend.nodes import fake_value
from graphplan.frontend.scalars import ScalarWriter
from graphplan.frontend.targets import call_name
from graphplan.nouns.tensor import TensorSpec


class NotAlike(Exception):
    """The traces differ in more than sizes."""


def unify_graphs(
    graph_by_size: Mapping[int, fx.Graph], specs: Mapping[str, TensorSpec]
) -> fx.Graph:
    """One graph from normalised graphs by batch size; raises NotAlike.

    `specs` describes the inputs with a symbolic batch.
    """
    return _Unifier(tuple(graph_by_size)).run(list(graph_by_size.values()), specs)


class _Unifier:
    def __init__(self, batch_sizes: tuple[int, ...]) -> None:
        self.batch_sizes = batch_sizes
        self.graph = fx.Graph()
        self.scalars = ScalarWriter(self.graph)
        self.copies: dict[str, fx.Node] = {}

    def run(self, graphs: Sequence[fx.Graph], specs: Mapping[str, TensorSpec]) -> fx.Graph:
        columns = [list(graph.nodes) for graph in graphs]
        if len({len(nodes) for nodes in columns}) > 1:
            raise NotAlike("another number of ops")
        rows = list(zip(*columns, strict=True))
        for row in rows:
            self._check_alike(row)
            if row[0].op == "placeholder":
                self.copies[row[0].name] = self.graph.node_copy(row[0])
        for name, node in self.copies.items():
            if specs[name].has_batch and not self.scalars.has_batch_size:
                self.scalars.read_batch_size(node, specs[name])
        for row in rows:
            if row[0].op != "placeholder":
                self._copy(row)
        return self.graph

    def _check_alike(self, row: Sequence[fx.Node]) -> None:
        """Same op under the same name, and results whose sizes are affine in the batch size."""
        if len({(node.op, node.name, call_name(node.target)) for node in row}) > 1:
            raise NotAlike(f"op {row[0].name!r}")
        leaves = [pytree.tree_leaves(fake_value(node)) for node in row]
        for column in zip(*leaves, strict=True):
            if all(isinstance(leaf, torch.Tensor) for leaf in column):
                for sizes in zip(*(leaf.shape for leaf in column), strict=True):
                    self._fit(sizes)

    def _copy(self, row: Sequence[fx.Node]) -> None:
        args = self._merge([node.args for node in row])
        kwargs = self._merge([dict(node.kwargs) for node in row])
        first = row[0]
        copy = self.graph.create_node(first.op, first.target, args, kwargs, name=first.name)
        copy.meta = dict(first.meta)
        self.copies[first.name] = copy

    def _merge(self, values: Sequence[Any]) -> Any:
        """One argument from the arguments of all traces."""
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise NotAlike(f"arguments {values}")
        if isinstance(first, fx.Node):
            if any(value.name != first.name for value in values):
                raise NotAlike(f"inputs {values}")
            return self.copies[first.name]
        if isinstance(first, (list, tuple)):
            return type(first)([self._merge(items) for items in zip(*values, strict=True)])
        if isinstance(first, dict):
            return {key: self._merge([value[key] for value in values]) for key in first}
        if isinstance(first, slice):
            parts = [(value.start, value.stop, value.step) for value in values]
            return slice(*self._merge(parts))
        if isinstance(first, int) and not isinstance(first, bool):
            return self.scalars.write_affine(*self._fit(values))
        if any(value != first for value in values):
            raise NotAlike(f"arguments {values}")
        return first

    def _fit(self, numbers: Sequence[int]) -> tuple[int, int]:
        sizes = self.batch_sizes
        scale, rest = divmod(numbers[1] - numbers[0], sizes[1] - sizes[0])
        offset = numbers[0] - scale * sizes[0]
        line = [scale * size + offset for size in sizes]
        if rest or line != list(numbers):
            raise NotAlike(f"sizes {list(numbers)} at batch sizes {list(sizes)}")
        return scale, offset
