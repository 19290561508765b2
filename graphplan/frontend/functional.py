"""Functionalisation: in-place ops on intermediate values become ops that return new values.

A cut may send a value to another device, where nobody can write into it; and the edges of the graph
must tell the whole order. Each value has a current version. A write makes a new version of what it
writes, and of everything that it is a view of (`y[:, 1:].mul_(2)` makes a new `y` by
`slice_scatter`); a later read of another view of `y` takes that view again from the new `y`.
What nobody reads afterwards is removed as dead code. Writes into weights stay: they are the
model's state (running statistics), and belong to the op that writes them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from graphplan.errors import CaptureError
from graphplan.frontend.nodes import fake_value, place_of_node
from graphplan.frontend.scatter import scatter_view
from graphplan.frontend.targets import OutOfPlace, is_random
from graphplan.frontend.writes import memory_of, written_nodes

aten = torch.ops.aten


class Tangled(CaptureError):
    """A write into memory that other values share in a way that cannot be untangled."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(
            f"{place_of_node(node) or 'In the model'}: {node.target} writes in place into memory"
            " that other values share in a way that cannot be untangled.",
            remedy="Write into a clone, or use the result of the op that does not write in place.",
        )
        self.module = str(node.meta.get("path", ""))
        """Path of the module it was written in."""


def functionalize_graph(graph: fx.Graph) -> fx.Graph:
    """The same graph, in which only weights are written in place."""
    if not any(written_nodes(node) for node in graph.nodes):
        return graph
    return _Functionalizer().run(graph)


class _Functionalizer:
    """Copies a graph node by node; all tables are keyed by nodes of the old graph."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.owner: dict[Hashable, fx.Node] = {}
        """The first value with a storage."""
        self.parent: dict[fx.Node, fx.Node] = {}
        """The value that a view was taken from."""
        self.written: dict[fx.Node, fx.Node] = {}
        """The value that an in-place op returned again."""
        self.num_writes: dict[fx.Node, int] = {}
        """By owner."""
        self.current: dict[fx.Node, tuple[int, fx.Node]] = {}
        """The new node that holds a value, and after how many writes."""

    def run(self, graph: fx.Graph) -> fx.Graph:
        for node in graph.nodes:
            written = written_nodes(node)
            if written and self._owner_of(written[0]).op != "get_attr":
                self._write(node, written)
            else:
                self.current[node] = (0, self.graph.node_copy(node, self._read))
                self._note_memory(node)
        return self.graph

    def _note_memory(self, node: fx.Node) -> None:
        value = fake_value(node)
        if not isinstance(value, torch.Tensor):
            return
        owner = self.owner.setdefault(memory_of(node), node)
        source = viewed_input(node)
        if owner is not node and source is not None:
            self.parent[node] = self.written.get(source, source)
        self.current[node] = (self.num_writes.get(owner, 0), self.current[node][1])

    def _owner_of(self, node: fx.Node) -> fx.Node:
        return self.owner.get(memory_of(node), node)

    def _read(self, node: fx.Node) -> fx.Node:
        """The new node that holds the value now."""
        node = self.written.get(node, node)
        num_writes = self.num_writes.get(self._owner_of(node), 0)
        seen, current = self.current[node]
        if seen == num_writes:
            return current
        if node not in self.parent:
            raise Tangled(node)
        view = self._take_view(node)
        self.current[node] = (num_writes, view)
        return view

    def _take_view(self, node: fx.Node) -> fx.Node:
        """Take a view again, from the newest version of what it shows."""
        if node.target is not operator.getitem:
            return self.graph.node_copy(node, self._read)
        several = node.args[0]
        assert isinstance(several, fx.Node)
        parts = self.graph.node_copy(several, self._read)
        return self.graph.node_copy(node, lambda _: parts)

    def _write(self, node: fx.Node, written: list[fx.Node]) -> None:
        if len(written) != 1 or not isinstance(fake_value(node), torch.Tensor):
            raise Tangled(node)
        value = self.written.get(written[0], written[0])
        news = [self._functional_node(node)]
        chain = [value]
        while chain[-1] in self.parent:
            source = self.parent[chain[-1]]
            scattered = scatter_view(self.graph, chain[-1], self._read(source), news[-1])
            if scattered is None:
                raise Tangled(node)
            chain.append(source)
            news.append(scattered)
        owner = self._owner_of(value)
        if chain[-1] is not owner:
            raise Tangled(node)
        self.num_writes[owner] = self.num_writes.get(owner, 0) + 1
        for member, new in zip(chain, news, strict=True):
            self.current[member] = (self.num_writes[owner], new)
        self.written[node] = value

    def _functional_node(self, node: fx.Node) -> fx.Node:
        assert isinstance(node.target, OpOverload)
        if node.target is aten.copy_.default:
            return self._copied_node(node)
        fresh = self.graph.node_copy(node, self._read)
        fresh.target = functional_form(node.target)
        return fresh

    def _copied_node(self, node: fx.Node) -> fx.Node:
        """`target.copy_(source)`: the source in the target's dtype and shape."""
        target, source = node.args[:2]
        assert isinstance(target, fx.Node) and isinstance(source, fx.Node)
        old, new = fake_value(target), fake_value(source)
        result = self._read(source)
        if new.dtype != old.dtype:
            result = self._add_node(node, aten.to.dtype, (result, old.dtype))
        if tuple(new.shape) != tuple(old.shape):
            result = self._add_node(node, aten.expand_as.default, (result, self._read(target)))
        return result

    def _add_node(self, origin: fx.Node, target: Callable[..., Any], args: Any) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta = dict(origin.meta)
        return node


def functional_form(target: OpOverload) -> Callable[..., Any]:
    """The op that computes the same as an in-place op and returns it."""
    packet = getattr(aten, target._schema.name.removeprefix("aten::").rstrip("_"), None)
    # The derived forms of random ops have no derivative and may draw other numbers.
    if packet is None or is_random(target):
        return OutOfPlace(target)
    wanted = _argument_types(target)
    for name in sorted(packet.overloads(), key=lambda name: name != target._overloadname):
        overload: OpOverload = getattr(packet, name)
        if _argument_types(overload) == wanted:
            return overload
    return OutOfPlace(target)


def _argument_types(target: OpOverload) -> list[tuple[str, str]]:
    return [(arg.name, str(arg.type)) for arg in target._schema.arguments]


def viewed_input(node: fx.Node) -> fx.Node | None:
    """The input whose memory the node's tensor shows, through a `getitem` of several views too."""
    memory = memory_of(node)
    if memory is None:
        return None
    inputs = node.all_input_nodes
    if node.target is operator.getitem and not isinstance(fake_value(inputs[0]), torch.Tensor):
        inputs = inputs[0].all_input_nodes
    for given in inputs:
        if memory_of(given) == memory:
            return given
    return None
