"""Units: the pieces of a captured model that are timed, one op each, or several short ones.

A unit runs alone, on random tensors in place of what the rest of the model would give it. Equal
units have equal signatures, so that one measurement serves all layers of a kind, and other models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graphplan.cost.flops import find_weight_values
from graphplan.nouns.opgraph import OpGraph

MAX_GROUP = 12
"""Most ops of a group of short ones."""

Values = dict[fx.Node, Any]


def list_units(graph: OpGraph, *, short: frozenset[str]) -> list[tuple[str, ...]]:
    """Names of the ops of every unit, in the order of the graph.

    Runs of short ops form groups. An op without a single tensor for a result (several results, or a
    size that depends on data) stays with all that reads it.
    """
    last_reader = _find_last_readers(graph)
    units: list[list[str]] = []
    open_until = -1
    for i, op in enumerate(graph.ops):
        joins = bool(units) and (
            i <= open_until
            or (op.name in short and units[-1][-1] in short and len(units[-1]) < MAX_GROUP)
        )
        if joins:
            units[-1].append(op.name)
        else:
            units.append([op.name])
        if op.output is None:
            open_until = max(open_until, last_reader[op.name])
    return [tuple(unit) for unit in units]


def _find_last_readers(graph: OpGraph) -> dict[str, int]:
    """Position of the last op that reads each op's value; its own when nobody does."""
    last = {op.name: i for i, op in enumerate(graph.ops)}
    for i, op in enumerate(graph.ops):
        for name in op.inputs:
            if name in last:
                last[name] = i
    return last


class UnitDescriber:
    """Signatures of units: equal text, equal time. Read off the op graph, without running it."""

    def __init__(self, graph: OpGraph, *, layout: str = "") -> None:
        """`layout` tells models apart whose weights have unusual strides."""
        self._graph = graph
        self._layout = layout
        self._from_weights = find_weight_values(graph)
        self._paths: dict[str, str] = {}
        self._known: dict[tuple[tuple[str, ...], int], str] = {}

    def describe(self, ops: tuple[str, ...], batch_size: int) -> str:
        """Calls, sizes, dtypes, views and gradients of a unit at a batch size."""
        if (ops, batch_size) not in self._known:
            self._known[ops, batch_size] = self._describe(ops, batch_size)
        return self._known[ops, batch_size]

    def _describe(self, ops: tuple[str, ...], batch_size: int) -> str:
        local = {name: f"v{i}" for i, name in enumerate(ops)}
        lines = [self._layout] if self._layout else []
        for name in ops:
            op = self._graph.op_by_name[name]
            given = [
                local.get(each) or self._describe_value(each, batch_size) for each in op.inputs
            ]
            held = [self._describe_weight(each) for each in op.weights]
            lines.append(f"{op.needs_backward} {op.call} <- {'; '.join((*given, *held))}")
        return re.sub(r"\bb\b", str(batch_size), "\n".join(lines))

    def _describe_value(self, name: str, batch_size: int) -> str:
        spec, op = self._graph.spec_of(name), self._graph.op_by_name.get(name)
        grad = op is not None and op.needs_backward
        half = "w" if name in self._from_weights else "x"
        sizes = f"{spec.dtype}{spec.sizes(batch_size)}" if spec else "?"
        return f"{half} {sizes} {grad} {self._view_path(name)}"

    def _view_path(self, name: str) -> str:
        """The views between a value and the owner of its memory: they decide the strides."""
        if name not in self._paths:
            op = self._graph.op_by_name.get(name)
            if op is None or op.alias is None:
                self._paths[name] = ""
            else:
                source = op.inputs[0] if op.inputs else ""
                self._paths[name] = f"{op.call}<{self._view_path(source) if source else ''}"
        return self._paths[name]

    def _describe_weight(self, name: str) -> str:
        weight = self._graph.weight_by_name[name]
        return f"{weight.spec} {weight.trainable}"


def run_on_fakes(module: fx.GraphModule, graph: OpGraph, batch_size: int) -> Values:
    """What every node gives at a batch size, without memory: fake tensors and plain numbers."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    specs = {given.name: given.spec for given in graph.inputs}
    values: Values = {}
    with mode, torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                sizes, dtype = spec.sizes(batch_size), getattr(torch, spec.dtype)
                values[node] = torch.empty(sizes, dtype=dtype)
            elif node.op == "get_attr":
                values[node] = _fake_attribute(module, str(node.target))
            elif node.op == "call_function":
                values[node] = _run_on_fakes(node, values, graph, batch_size)
    return values


def _run_on_fakes(node: fx.Node, values: Values, graph: OpGraph, batch_size: int) -> Any:
    """An op's result; where it cannot run without data, a tensor as the graph describes it."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: values[given])
    try:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:
        op = graph.op_by_name.get(node.name)
        if op is None:
            raise
        spec = op.output
        return (
            torch.empty(spec.sizes(batch_size), dtype=getattr(torch, spec.dtype)) if spec else None
        )


def _fake_attribute(module: fx.GraphModule, path: str) -> Any:
    held = get_attribute(module, path)
    if not isinstance(held, torch.Tensor):
        return held
    return torch.empty_strided(tuple(held.shape), held.stride(), dtype=held.dtype)


def get_attribute(module: torch.nn.Module, path: str) -> Any:
    """What a `get_attr` node reads."""
    held: Any = module
    for name in path.split("."):
        held = getattr(held, name)
    return held


@dataclass(frozen=True)
class Unit:
    """A piece of a model that can run: its own fx module and what it reads."""

    ops: tuple[str, ...]
    module: fx.GraphModule
    """Takes the values of `readings` by position, returns a tuple of what others read."""
    readings: tuple[fx.Node, ...]
    """Nodes of the whole model."""
    halves: tuple[str | None, ...]
    """By reading: `input` or `weight` for the half of the backward, None without gradient."""


class UnitBuilder:
    """Builds the units of one captured model at one batch size."""

    def __init__(
        self,
        module: fx.GraphModule,
        graph: OpGraph,
        values: Mapping[fx.Node, Any],
        device: torch.device,
    ) -> None:
        self._module = module
        self._graph = graph
        self._values = values
        self._device = device
        self._node_by_name = {node.name: node for node in module.graph.nodes}
        self._from_weights = find_weight_values(graph)

    def build(self, ops: tuple[str, ...]) -> Unit:
        """The unit of these ops, which follow each other in the graph."""
        members = [self._node_by_name[name] for name in ops]
        body, copies, readings = self._copy_nodes(members)
        results = [node for node in members if self._is_result(node, set(members))]
        body.output(tuple(copies[node] for node in results))
        attributes = {
            str(node.target): get_attribute(self._module, str(node.target))
            for node in body.find_nodes(op="get_attr")
        }
        return Unit(
            ops=ops,
            module=fx.GraphModule(attributes, body),
            readings=tuple(readings),
            halves=tuple(self._half_of(node, members) for node in readings),
        )

    def _copy_nodes(
        self, members: Sequence[fx.Node]
    ) -> tuple[fx.Graph, dict[fx.Node, fx.Node], list[fx.Node]]:
        """The members in a graph of their own; tensors from outside become placeholders."""
        body, copies, readings = fx.Graph(), {}, []  # type: ignore[var-annotated]
        inside = set(members)
        for node in self._outside(members, inside):
            if isinstance(self._values[node], torch.Tensor):
                copies[node] = body.placeholder(f"r{len(readings)}")
                readings.append(node)
            elif node.op == "get_attr":
                copies[node] = body.node_copy(node)
        for node in members:
            copy = body.node_copy(node, lambda given: copies.get(given) or self._values[given])
            copy.args = _move_devices(copy.args, self._device)
            copy.kwargs = _move_devices(copy.kwargs, self._device)
            copies[node] = copy
        return body, copies, readings

    @staticmethod
    def _outside(members: Sequence[fx.Node], inside: set[fx.Node]) -> Iterator[fx.Node]:
        given = (each for node in members for each in node.all_input_nodes)
        yield from dict.fromkeys(each for each in given if each not in inside)

    def _is_result(self, node: fx.Node, inside: set[fx.Node]) -> bool:
        if not isinstance(self._values[node], torch.Tensor):
            return False
        return not node.users or any(user not in inside for user in node.users)

    def _half_of(self, node: fx.Node, members: Sequence[fx.Node]) -> str | None:
        readers = [user.name for user in node.users if user in members]
        ops = self._graph.op_by_name
        if not any(ops[name].needs_backward for name in readers if name in ops):
            return None
        if node.op == "get_attr":
            return "weight" if self._graph.weight_by_name[str(node.target)].trainable else None
        if node.name not in ops or not ops[node.name].needs_backward:
            return None
        return "weight" if node.name in self._from_weights else "input"


def _move_devices(args: Any, device: torch.device) -> Any:
    """The measured device in place of the captured one."""
    if isinstance(args, torch.device):
        return device
    if isinstance(args, (tuple, list)):
        return type(args)(_move_devices(each, device) for each in args)
    if isinstance(args, dict):
        return {key: _move_devices(value, device) for key, value in args.items()}
    return args
