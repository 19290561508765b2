"""Rebuild: an op graph without its model becomes a module that can be measured.

So a graph.json can be measured on a machine that has neither the model's code nor its weights. The
calls of the ops are parsed, never evaluated; what they name is looked up among torch's registered
ops. Weights are meta tensors. An op that is not known here (a custom op that is not imported, a
sub-graph) becomes a call that refuses to run, so that measuring estimates it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx
from torch._ops import OpOverload

from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.tensor import parse_dim

_CALL = re.compile(r"(?:autocast\[(\w+), (\w+)\]\.)?([\w.]+)\((.*)\)", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<mark>[%@]\d+)"""
    r"""|(?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)(?![\w*]))"""
    r"""|(?P<dim>(?:\d+\*)?b(?:[+-]\d+)?(?!\w))|(?P<word>[A-Za-z_]\w*)|(?P<sign>[\[\],=]))"""
)
_WORDS = {"None": None, "True": True, "False": False}
_DEVICES = ("cpu", "cuda", "meta", "xpu", "mps")


@dataclass(frozen=True)
class Rebuilt:
    """What measuring needs of a captured model."""

    graph: OpGraph
    module: fx.GraphModule


class NotKnown(Exception):
    """A call that cannot be rebuilt."""


def rebuild_graph(graph: OpGraph) -> Rebuilt:
    """A module that runs the ops of a graph, with the names that a capture gives."""
    return Rebuilt(graph=graph, module=_Rebuilder(graph).build())


class _Rebuilder:
    """Writes the ops of a graph into an fx graph."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.body = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.weights: dict[str, fx.Node] = {}
        self.scalars: dict[tuple[int, int], fx.Node] = {}

    def build(self) -> fx.GraphModule:
        for given in self.graph.inputs:
            self.values[given.name] = self.body.placeholder(given.name)
        attributes = {weight.name: _make_weight(weight) for weight in self.graph.weights}
        self.weights = {name: self.body.get_attr(name) for name in attributes}
        for op in self.graph.ops:
            self.values[op.name] = self._write_op(op)
        self.body.output(tuple(self.values[name] for name in self.graph.outputs))
        return fx.GraphModule(attributes, self.body)

    def _write_op(self, op: Op) -> fx.Node:
        try:
            target, args, kwargs = self._parse_call(op)
        except NotKnown as error:
            given = [self.values[name] for name in op.inputs]
            given += [self.weights[name] for name in op.weights]
            target, args, kwargs = _Refusal(str(error)), given, {}
        return self.body.create_node("call_function", target, tuple(args), kwargs, name=op.name)

    def _parse_call(self, op: Op) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        match = _CALL.fullmatch(op.call)
        if match is None:
            raise NotKnown(f"{op.call!r} is no call")
        device, dtype, name, arguments = match.groups()
        target = _find_target(name)
        parser = _Arguments(arguments, lambda token: self._resolve(op, token))
        args, kwargs = parser.parse()
        if isinstance(target, OpOverload) and _takes_device(target):
            kwargs.setdefault("device", torch.device("cpu"))
        if device is not None:
            target = _Autocast(target, device, getattr(torch, dtype, None))
        return target, args, kwargs

    def _resolve(self, op: Op, token: str) -> fx.Node | int:
        """The node behind `%0`, `@1` or `16*b+1`."""
        if token[0] == "%":
            return self.values[op.inputs[int(token[1:])]]
        if token[0] == "@":
            name = op.weights[int(token[1:])]
            return self.weights[self.graph.weight_by_name[name].name]
        return self._write_scalar(*parse_dim(token))

    def _write_scalar(self, scale: int, offset: int) -> fx.Node:
        """scale * b + offset, with b read off an input."""
        if (scale, offset) not in self.scalars:
            given, index, factor, shift = self._find_batch_dim()
            size = (given, index, factor, shift, scale, offset)
            self.scalars[scale, offset] = self.body.call_function(read_size, size)
        return self.scalars[scale, offset]

    def _find_batch_dim(self) -> tuple[fx.Node, int, int, int]:
        for given in self.graph.inputs:
            for index, dim in enumerate(given.spec.shape):
                if isinstance(dim, str):
                    return (self.values[given.name], index, *parse_dim(dim))
        raise NotKnown("no input has a batch dimension")


def read_size(
    given: torch.Tensor, index: int, factor: int, shift: int, scale: int, offset: int
) -> int:
    """scale * b + offset, where the dimension `index` is factor * b + shift."""
    return scale * ((given.shape[index] - shift) // factor) + offset


class _Arguments:
    """A recursive descent over the text of a call's arguments."""

    def __init__(self, text: str, resolve: Callable[[str], Any]) -> None:
        self._tokens = _split_tokens(text)
        self._resolve = resolve
        self._at = 0

    def parse(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        while self._at < len(self._tokens):
            if self._peek(1) == ("sign", "=") and self._peek()[0] == "word":
                key = self._take()[1]
                self._take()
                kwargs[key] = self._value()
            else:
                args.append(self._value())
            if self._at < len(self._tokens):
                self._expect(",")
        return args, kwargs

    def _value(self) -> Any:
        kind, token = self._take()
        if kind == "text":
            return ast.literal_eval(token)
        if kind == "number":
            return int(token) if re.fullmatch(r"-?\d+", token) else float(token)
        if kind in ("mark", "dim"):
            return self._resolve(token)
        if kind == "word":
            return _find_word(token)
        if token == "[":
            return self._list()
        raise NotKnown(f"unexpected {token!r}")

    def _list(self) -> list[Any]:
        items: list[Any] = []
        while self._peek() != ("sign", "]"):
            items.append(self._value())
            if self._peek() != ("sign", "]"):
                self._expect(",")
        self._take()
        return items

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        position = self._at + ahead
        return self._tokens[position] if position < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        if token[0] == "end":
            raise NotKnown("the call ends early")
        self._at += 1
        return token

    def _expect(self, sign: str) -> None:
        if self._take() != ("sign", sign):
            raise NotKnown(f"expected {sign!r}")


def _split_tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotKnown(f"cannot read {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def _find_word(word: str) -> Any:
    """None, a truth value, a dtype, a layout, a memory format or a device."""
    if word in _WORDS:
        return _WORDS[word]
    if word in _DEVICES:
        return torch.device(word)
    found = getattr(torch, word, None)
    if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        return found
    raise NotKnown(f"{word!r} is not known")


def _find_target(name: str) -> Callable[..., Any]:
    """The op that torch has registered under a name such as `aten.linear.default`."""
    parts = name.split(".")
    if len(parts) == 1 and parts[0] in operator.__all__:
        return getattr(operator, parts[0])  # type: ignore[no-any-return]
    found: Any = torch.ops
    for part in parts:
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError) as error:
            raise NotKnown(f"the op {name!r} is not registered here") from error
    if not isinstance(found, OpOverload):
        raise NotKnown(f"{name!r} is no op")
    return _OutOfPlace(found) if _writes_first(found) else found


def _takes_device(target: OpOverload) -> bool:
    return any(argument.name == "device" for argument in target._schema.arguments)


def _writes_first(target: OpOverload) -> bool:
    arguments = target._schema.arguments
    info = arguments[0].alias_info if arguments else None
    return target.__name__.split(".")[0].endswith("_") and bool(info and info.is_write)


def _make_weight(weight: Any) -> torch.Tensor:
    dtype = getattr(torch, weight.spec.dtype)
    tensor = torch.empty(weight.spec.sizes(1), dtype=dtype, device="meta")
    return torch.nn.Parameter(tensor) if weight.trainable else tensor


class _Wrapped:
    """A callable around another; fx writes calls by `__name__` and `__module__`."""

    def __init__(self, target: Any, prefix: str) -> None:
        self.target = target
        self.__name__ = re.sub(r"\W", "_", f"{prefix}_{target}")
        self.__module__ = __name__

    def __str__(self) -> str:
        return str(self.target)


class _Autocast(_Wrapped):
    def __init__(self, target: Any, device: str, dtype: torch.dtype | None) -> None:
        super().__init__(target, f"autocast_{dtype}")
        self.device, self.dtype = device, dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device, self.dtype, enabled=self.dtype is not None):
            return self.target(*args, **kwargs)


class _OutOfPlace(_Wrapped):
    def __init__(self, target: OpOverload) -> None:
        super().__init__(target, "copied")

    def __call__(self, written: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.target(written.clone(), *args, **kwargs)


class _Refusal(_Wrapped):
    def __init__(self, reason: str) -> None:
        super().__init__("refused", "not_known")
        self.reason = reason

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotKnown(self.reason)
