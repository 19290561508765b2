"""Code generation: the fx graph of a stage becomes a plain Python function.

The function takes the stage's inputs and then its weights, in fixed orders, and returns its
outputs as a tuple. Weights are arguments because a weight policy may run a micro-batch with any
version of them. Compared with the call of an fx module there is no attribute lookup for each
weight, no dispatch through `OpOverload.__call__` for the most frequent ops, and a value is dropped
after its last use.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from graphplan_runtime.stages.regions import Region

aten = torch.ops.aten

FAST_TARGETS: dict[Any, Callable[..., Any]] = {
    aten.linear.default: torch._C._nn.linear,
    aten.relu.default: torch.relu,
    aten.gelu.default: torch._C._nn.gelu,
    aten.silu.default: torch._C._nn.silu,
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.matmul.default: torch.matmul,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.layer_norm.default: torch.layer_norm,
    aten.embedding.default: torch.embedding,
    aten.transpose.int: torch.transpose,
    aten.permute.default: torch.permute,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.reshape.default: torch.reshape,
    aten.conv2d.default: torch.conv2d,
    aten.mean.default: torch.mean,
    aten.scaled_dot_product_attention.default: torch._C._nn.scaled_dot_product_attention,
}
"""The same ops through torch's Python bindings, which take the same arguments in the same order."""

StageFunction = Callable[..., tuple[Any, ...]]
Defer = Callable[..., Any]
"""Runs (function, *data) so that weight gradients wait; see deferred.py."""


class Uses(NamedTuple):
    """What is called around nodes, because of the weights that they read."""

    before: Mapping[fx.Node, Sequence[Callable[[], object]]]
    after: Mapping[fx.Node, Sequence[Callable[[], object]]]


def find_uses(
    graph: fx.Graph,
    owners: Mapping[str, str],
    bucket_by_weight: Mapping[str, int],
    open_bucket: Callable[[int], object],
    close_bucket: Callable[[int], object],
) -> Uses:
    """Open a bucket of weights before its first reader and close it after its last one.

    `owners` say whose memory a value shares: who reads a view of a weight reads the weight.
    """
    holding: dict[fx.Node, int] = {}
    first: dict[int, fx.Node] = {}
    last: dict[int, fx.Node] = {}
    for node in graph.nodes:
        owner = str(node.target) if node.op == "get_attr" else owners.get(node.name, "")
        if owner in bucket_by_weight:
            holding[node] = bucket_by_weight[owner]
        if node.op == "call_function":
            for index in sorted(
                {holding[each] for each in node.all_input_nodes if each in holding}
            ):
                first.setdefault(index, node)
                last[index] = node
    before: dict[fx.Node, list[Callable[[], object]]] = {}
    after: dict[fx.Node, list[Callable[[], object]]] = {}
    for index, node in first.items():
        before.setdefault(node, []).append(partial(open_bucket, index))
        after.setdefault(last[index], []).append(partial(close_bucket, index))
    return Uses(before, after)


def generate_function(
    graph: fx.Graph,
    *,
    inputs: Sequence[str],
    weights: Sequence[str],
    attributes: Mapping[str, Any],
    deferred: Mapping[fx.Node, Sequence[fx.Node]] | None = None,
    defer: Defer | None = None,
    uses: Uses | None = None,
    regions: Sequence[Region] = (),
    recompute: Callable[..., Any] | None = None,
    captured: Collection[fx.Node] = (),
) -> StageFunction:
    """A function of the tensors named `inputs` and then those named `weights`.

    Other things that the graph reads by `get_attr` are taken from `attributes` once. Nodes in
    `deferred` are run by `defer`, which gets a function of the data nodes that are listed for them.
    What `uses` lists is called before and after its nodes. `regions` are run by `recompute`, which
    gets a function of what they read, except for what is `captured`, which the function knows.
    """
    writer = _Writer(graph, inputs, weights, attributes)
    writer.deferred = deferred or {}
    writer.scope["defer"] = defer
    writer.uses = uses or writer.uses
    writer.regions = {region.nodes[0]: region for region in regions}
    writer.scope["recompute"] = recompute
    writer.captured = captured
    return writer.write()


class _Writer:
    def __init__(
        self,
        graph: fx.Graph,
        inputs: Sequence[str],
        weights: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> None:
        self.graph = graph
        self.weights = {name: f"w{i}" for i, name in enumerate(weights)}
        self.inputs = {name: f"x{i}" for i, name in enumerate(inputs)}
        self.attributes = attributes
        self.deferred: Mapping[fx.Node, Sequence[fx.Node]] = {}
        self.uses = Uses({}, {})
        self.regions: Mapping[fx.Node, Region] = {}
        """By the first of their nodes."""
        self.captured: Collection[fx.Node] = ()
        self.scope: dict[str, Any] = {}
        self.names: dict[fx.Node, str] = {}
        self.lines: list[str] = []

    def write(self) -> StageFunction:
        arguments = ", ".join((*self.inputs.values(), *self.weights.values()))
        last_uses = _find_last_uses(self.graph)
        name_by_node = {node: f"v{i}" for i, node in enumerate(self.graph.nodes)}
        for node, name in name_by_node.items():
            if node.op in ("placeholder", "get_attr"):
                self._write_node(node, name)
        done: set[fx.Node] = set()
        for node in self.graph.nodes:
            if node in done or node.op in ("placeholder", "get_attr"):
                continue
            region = self.regions.get(node)
            nodes = (node,) if region is None else region.nodes
            done.update(nodes)
            for each in nodes:
                self._write_calls(self.uses.before.get(each, ()))
            if region is None:
                self._write_node(node, name_by_node[node])
            else:
                self._write_region(region, name_by_node)
            for each in nodes:
                self._write_calls(self.uses.after.get(each, ()))
            gone = (gone for each in nodes for gone in last_uses.get(each, ()))
            dead = [self.names[each] for each in gone if self._is_local(each) and each not in nodes]
            if dead and node.op != "output":
                self.lines.append(f"{' = '.join(dead)} = None")
        body = "\n    ".join(self.lines)
        source = f"def run_stage({arguments}):\n    {body}\n"
        place = f"<generated code of a stage {id(self)}>"
        # Tracebacks show the line and its op.
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        exec(compile(source, place, "exec"), self.scope)
        function: StageFunction = self.scope["run_stage"]
        return function

    def _write_region(self, region: Region, name_by_node: Mapping[fx.Node, str]) -> None:
        """def region(v1, w2): ...; return (v5,)      (v5,) = recompute(region, v1, w2)"""
        read = [
            each
            for each in region.inputs
            if self._is_local(each) or str(each.target) in self.weights
        ]
        given = [self.names[each] for each in read if each not in self.captured]
        # Held by the function: the variables of the stage are dropped after their last use.
        held = [f"{self.names[each]}={self.names[each]}" for each in read if each in self.captured]
        outer, self.lines = self.lines, []
        for node in region.nodes:
            if self.captured:  # Weights are read where they lie, and there when it runs again.
                self._write_calls(self.uses.before.get(node, ()))
            self._write_node(node, name_by_node[node])
        inner, self.lines = self.lines, outer
        name = f"region_{name_by_node[region.nodes[0]]}"
        made = self._render(region.outputs)
        self.lines.append(f"def {name}({', '.join((*given, *held))}):")
        self.lines += [f"    {line}" for line in (*inner, f"return {made}")]
        self.lines.append(f"{made} = recompute({', '.join((name, *given))})")

    def _write_calls(self, calls: Sequence[Callable[[], object]]) -> None:
        for call in calls:
            self.lines.append(f"{self._bind(call, f'use_{len(self.scope)}')}()")

    def _is_local(self, node: fx.Node) -> bool:
        return node.op in ("call_function", "placeholder")

    def _write_node(self, node: fx.Node, name: str) -> None:
        if node.op == "placeholder":
            self.names[node] = self.inputs[node.name]
        elif node.op == "get_attr":
            self.names[node] = self._name_attribute(str(node.target), name)
        elif node.op == "output":
            self.lines.append(f"return {self._render(tuple(node.args[0]))}")  # type: ignore[arg-type]
        elif node.target is aten.sym_size.int:
            self.names[node] = name
            self.lines.append(f"{name} = {self._render(node.args[0])}.size({node.args[1]})")
        else:
            self.names[node] = name
            self.lines.append(f"{name} = {self._render_call(node)}")

    def _name_attribute(self, target: str, name: str) -> str:
        if target in self.weights:
            return self.weights[target]
        return self._bind(self.attributes[target], f"attribute_{name}")

    def _render_call(self, node: fx.Node) -> str:
        """call(v7, w3, [v8, v2]), or defer(lambda d0, d1: call(d0, w3, [d1, v2]), v7, v8)."""
        if node not in self.deferred:
            return self._render_plain(node)
        data = self.deferred[node]
        names = {given: self.names[given] for given in data}
        self.names |= {given: f"d{i}" for i, given in enumerate(data)}
        call = self._render_plain(node)
        self.names |= names
        arguments = ", ".join(f"d{i}" for i in range(len(data)))
        return f"defer(lambda {arguments}: {call}, {', '.join(names.values())})"

    def _render_plain(self, node: fx.Node) -> str:
        target = FAST_TARGETS.get(node.target, node.target)
        words = [self._render(arg) for arg in node.args]
        words += [f"{key}={self._render(arg)}" for key, arg in node.kwargs.items()]
        return f"{self._bind(target, f'call_{node.name}')}({', '.join(words)})"

    def _bind(self, value: Any, name: str) -> str:
        self.scope[name] = value
        return name

    def _render(self, value: Any) -> str:
        """The text of an argument: nodes by name, nests as displays, all else as a constant."""
        if isinstance(value, fx.Node):
            return self.names[value]
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        if isinstance(value, tuple):
            return "(" + "".join(f"{self._render(each)}, " for each in value) + ")"
        if isinstance(value, list):
            return "[" + ", ".join(map(self._render, value)) + "]"
        if isinstance(value, slice):
            ends = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(self._render, ends))})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._render(v)}" for k, v in value.items()) + "}"
        return self._bind(value, f"constant_{len(self.scope)}")


def _find_last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node the values that nobody reads after it."""
    last: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        for given in node.all_input_nodes:
            if given not in seen:
                seen.add(given)
                last.setdefault(node, []).append(given)
    return last
