"""Units: the pieces of a captured model that are timed, one op each, or several short ones.

A unit runs alone, on random tensors in place of what the rest of the model would give it. Equal
units have equal signatures, so that one measurement serves all layers of a kind, and other models.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graphplan.cost.flops import find_weight_values
from graphplan.cost.measure_body import Body, Line, move_devices
from graphplan.cost.measure_limits import Limits
from graphplan.nouns.names import MAX_PATH, fit_text
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.tensor import TensorSpec

MAX_GROUP = 12
"""Most ops of a group of short ones."""

STEP_UNITS = 2
"""A whole step of a graph from a file may take so much more than a unit."""

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
        waiting = [name]
        while waiting[-1] not in self._paths:
            op = self._graph.op_by_name.get(waiting[-1])
            if op is None or op.alias is None or not op.inputs:
                break
            waiting.append(op.inputs[0])
        for each in reversed(waiting):
            op = self._graph.op_by_name.get(each)
            if each in self._paths:
                continue
            if op is None or op.alias is None:
                self._paths[each] = ""
            else:
                above = self._paths[op.inputs[0]] if op.inputs else ""
                self._paths[each] = fit_text(f"{op.call}<{above}", most=MAX_PATH)
        return self._paths[name]

    def _describe_weight(self, name: str) -> str:
        weight = self._graph.weight_by_name[name]
        return f"{weight.spec} {weight.trainable}"


def run_on_fakes(
    body: Body, graph: OpGraph, batch_size: int, *, limits: Limits | None = None
) -> Values:
    """What every node gives at a batch size, without memory: fake tensors and plain numbers.

    With `limits` it notes what they would take.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    specs = {given.name: given.spec for given in graph.inputs}
    values: Values = {}
    with mode, torch.no_grad():
        for node in body.graph.nodes:
            if node.op == "placeholder":
                values[node] = _fake_like(specs[body.names[node]], batch_size)
            elif node.op == "get_attr":
                values[node] = _fake_attribute(body.held[str(node.target)])
            elif node.op == "call_function":
                op = graph.op_by_name.get(body.names.get(node, ""))
                values[node] = _run_on_fakes(node, values, op, batch_size, limits)
            if limits is not None and node in values:
                limits.note(node, values[node])
    return values


def _run_on_fakes(
    node: fx.Node, values: Values, op: Op | None, batch_size: int, limits: Limits | None
) -> Any:
    """An op's result; where it cannot run without data, a tensor as the graph describes it."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: values[given])
    call = functools.partial(node.target, *args, **kwargs)  # type: ignore[arg-type, operator, misc]
    try:
        return call() if limits is None else limits.run(node, call, args)
    except Exception:
        if op is None:
            raise
        return _fake_like(op.output, batch_size) if op.output else None


def _fake_like(spec: TensorSpec, batch_size: int) -> torch.Tensor:
    return torch.empty(spec.sizes(batch_size), dtype=getattr(torch, spec.dtype))


def _fake_attribute(held: Any) -> Any:
    if not isinstance(held, torch.Tensor):
        return held
    return torch.empty_strided(tuple(held.shape), held.stride(), dtype=held.dtype)


@dataclass(frozen=True)
class Unit:
    """A piece of a model that can run, and what it reads."""

    ops: tuple[str, ...]
    line: Callable[..., tuple[Any, ...]]
    """Takes the values of `readings` by position, returns a tuple of what others read."""
    readings: tuple[fx.Node, ...]
    """Nodes of the whole model."""
    halves: tuple[str | None, ...]
    """By reading: `input` or `weight` for the half of the backward, None without gradient."""


class UnitBuilder:
    """Builds the units of one captured model at one batch size."""

    def __init__(
        self,
        body: Body,
        graph: OpGraph,
        values: Mapping[fx.Node, Any],
        device: torch.device,
        limits: Limits | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self._body = body
        self._compiled = compiled
        self._graph = graph
        self._values = values
        self._device = device
        self._limits = limits
        self._node_by_name = {name: node for node, name in body.names.items()}
        self._from_weights = find_weight_values(graph)

    def build(self, ops: tuple[str, ...]) -> Unit:
        """The unit of these ops, which follow each other in the graph."""
        members = [self._node_by_name[name] for name in ops]
        nodes, copies, readings = self._copy_nodes(members)
        if self._limits is not None:
            self._limits.check((*members, *readings), what=f"{ops[0]!r}")
        results = [node for node in members if self._is_result(node, set(members))]
        nodes.output(tuple(copies[node] for node in results))
        return Unit(
            ops=ops,
            line=self._make_line(nodes),
            readings=tuple(readings),
            halves=tuple(self._half_of(node, members) for node in readings),
        )

    def _make_line(self, nodes: fx.Graph) -> Callable[..., tuple[Any, ...]]:
        """What runs the nodes; graphs of the user's own code may become code."""
        line = Line(nodes, self._body.held, self._device)
        if not self._compiled:
            return line
        module = fx.GraphModule(dict(self._body.held), nodes)
        for node in nodes.nodes:
            node.args = move_devices(node.args, self._device)
            node.kwargs = move_devices(dict(node.kwargs), self._device)
        module.recompile()
        compiled: Callable[..., tuple[Any, ...]] = torch.compile(module, dynamic=False)
        return compiled

    def check_step(self) -> None:
        """Refuse a step of the whole model that would take too much of a file's word."""
        if self._limits is not None:
            self._limits.check(self._body.graph.nodes, what="a step", times=STEP_UNITS)

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
        names = self._body.names
        readers = [names[user] for user in node.users if user in members]
        ops = self._graph.op_by_name
        if not any(ops[name].needs_backward for name in readers if name in ops):
            return None
        if node.op == "get_attr":
            return "weight" if self._graph.weight_by_name[str(node.target)].trainable else None
        name = names.get(node, "")
        if name not in ops or not ops[name].needs_backward:
            return None
        return "weight" if name in self._from_weights else "input"
