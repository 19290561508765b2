"""Body: the nodes of a model with what they read, run one by one without generating code.

A captured model and a graph from a file are measured alike. A file may call its ops what it likes:
its names never become source, because nothing here writes source. A line takes its arguments out of
a list of values with one C call for each op, which costs no more than generated code does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Body:
    """The nodes of a model, with the tensors and names that belong to them."""

    graph: fx.Graph
    held: Mapping[str, Any]
    """What `get_attr` nodes read, by their target."""
    names: Mapping[fx.Node, str]
    """Names of inputs and ops in the op graph."""


def open_body(module: fx.GraphModule) -> Body:
    """The body of a captured model, whose nodes have the names of the op graph."""
    targets = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    held = {target: operator.attrgetter(target)(module) for target in targets}
    return Body(module.graph, held, {node: node.name for node in module.graph.nodes})


Take = Callable[[list[Any]], tuple[Any, ...]]
"""Takes the arguments of a call out of the values."""


class Line:
    """Calls the nodes of a graph on a device, in their order; every value is let go after its last
    reader."""

    def __init__(self, graph: fx.Graph, held: Mapping[str, Any], device: torch.device) -> None:
        self._device = device
        self._place: dict[fx.Node, int] = {}
        self._values: list[Any] = []
        self._steps: list[tuple[Callable[..., Any], Take, int, tuple[int, ...]]] = []
        self._result: Take = tuple
        self._num_given = 0
        for node in graph.find_nodes(op="placeholder"):
            self._place[node] = self._add(None)
            self._num_given += 1
        last = _find_last_readers(graph)
        for node in graph.nodes:
            if node.op == "get_attr":
                self._place[node] = self._add(held[str(node.target)])
            elif node.op == "call_function":
                self._add_step(node, last)
            elif node.op == "output":
                self._result = self._take(tuple(node.args[0]))

    def __call__(self, *given: torch.Tensor) -> tuple[Any, ...]:
        values = self._values.copy()
        values[: self._num_given] = given
        for run, take, place, spent in self._steps:
            values[place] = run(*take(values))
            for each in spent:
                values[each] = None
        return self._result(values)

    def _add(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _add_step(self, node: fx.Node, last: Mapping[fx.Node, list[fx.Node]]) -> None:
        kwargs = move_devices(dict(node.kwargs), self._device)
        run: Callable[..., Any] = node.target  # type: ignore[assignment]
        args = move_devices(node.args, self._device)
        if any(isinstance(given, fx.Node) for given in fx.map_arg(kwargs, lambda n: n).values()):
            run, args = _Named(run, tuple(kwargs)), (*node.args, *kwargs.values())
        elif kwargs:
            run = functools.partial(run, **{key: _plain(each) for key, each in kwargs.items()})
        take = self._take(args)
        self._place[node] = self._add(None)
        spent = tuple(self._place[each] for each in last.get(node, ()))
        self._steps.append((run, take, self._place[node], spent))

    def _take(self, args: tuple[Any, ...]) -> Take:
        if any(_holds_node(each) for each in args if not isinstance(each, fx.Node)):
            return functools.partial(self._fill, args)
        places = [
            self._place[each] if isinstance(each, fx.Node) else self._add(_plain(each))
            for each in args
        ]
        if len(places) > 1:
            return operator.itemgetter(*places)
        return lambda values: tuple([values[place] for place in places])

    def _fill(self, args: Any, values: list[Any]) -> Any:
        """Arguments with nodes inside of lists."""
        if isinstance(args, fx.Node):
            return values[self._place[args]]
        if isinstance(args, (tuple, list)):
            filled = [self._fill(each, values) for each in args]
            return tuple(filled) if isinstance(args, tuple) else filled
        if isinstance(args, dict):
            return {key: self._fill(each, values) for key, each in args.items()}
        if isinstance(args, slice):
            return slice(*(self._fill(each, values) for each in (args.start, args.stop, args.step)))
        return args


class _Named:
    """A call whose last arguments have names."""

    def __init__(self, target: Callable[..., Any], names: tuple[str, ...]) -> None:
        self._target, self._names = target, names

    def __call__(self, *args: Any) -> Any:
        split = len(args) - len(self._names)
        return self._target(*args[:split], **dict(zip(self._names, args[split:], strict=True)))


def _holds_node(arg: Any) -> bool:
    found: list[fx.Node] = []
    fx.map_arg(arg, found.append)
    return bool(found)


def _plain(arg: Any) -> Any:
    """fx keeps lists that cannot be changed; ops get plain ones, as from code."""
    if isinstance(arg, (tuple, list)):
        plain = [_plain(each) for each in arg]
        return tuple(plain) if isinstance(arg, tuple) else plain
    return {key: _plain(each) for key, each in arg.items()} if isinstance(arg, dict) else arg


def move_devices(args: Any, device: torch.device) -> Any:
    """Arguments with this device in place of any that they name."""
    if isinstance(args, torch.device):
        return device
    if isinstance(args, (tuple, list)):
        return type(args)(move_devices(each, device) for each in args)
    if isinstance(args, dict):
        return {key: move_devices(value, device) for key, value in args.items()}
    return args


def _find_last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """The values that nobody reads any more after a node."""
    found: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        for given in (*node.all_input_nodes, *((node,) if not node.users else ())):
            if given not in seen and given.op != "get_attr":
                seen.add(given)
                found.setdefault(node, []).append(given)
    return found
