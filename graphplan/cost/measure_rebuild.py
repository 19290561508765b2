"""Rebuild: an op graph without its model becomes a body that can be measured.

So a graph.json can be measured on a machine that has neither the model's code nor its weights. The
calls of the ops are parsed, never evaluated, and no source is made of them; what they name must be
among the allowed ops (measure_allowed.py). Weights are meta tensors. An op that is not known here
(a custom op, a sub-graph) becomes a call that refuses to run, so that measuring estimates it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx
from torch._ops import OpOverload

from graphplan.cost.measure_allowed import MAX_NUMBER, NotKnown, find_target
from graphplan.cost.measure_body import Body
from graphplan.nouns.opgraph import Op, OpGraph, Weight
from graphplan.nouns.tensor import parse_dim

MAX_DEPTH = 8
"""Lists inside of lists."""

_CALL = re.compile(r"(?:autocast\[(\w+)\]\.)?([\w.]+)\((.*)\)", re.DOTALL | re.ASCII)
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<mark>[%@]\d{1,9})"""
    r"""|(?P<number>-?(?:\d{1,30}\.?\d{0,30}(?:e[+-]?\d{1,4})?|inf|nan)(?![\w*]))"""
    r"""|(?P<dim>(?:\d{1,19}\*)?b(?:[+-]\d{1,19})?(?!\w))|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<sign>[\[\],=]))""",
    re.ASCII,
)
_WORDS = {"None": None, "True": True, "False": False}
_DEVICES = ("cpu", "cuda", "meta", "xpu", "mps")


@dataclass(frozen=True)
class Rebuilt:
    """What measuring needs of a model, from its graph alone."""

    graph: OpGraph
    body: Body


def rebuild_graph(graph: OpGraph) -> Rebuilt:
    """A body that runs the ops of a graph."""
    return Rebuilt(graph=graph, body=_Rebuilder(graph).build())


class _Rebuilder:
    """Writes the ops of a graph into an fx graph, under names of our own."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.nodes = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.weights: dict[str, fx.Node] = {}
        self.scalars: dict[tuple[int, int], fx.Node] = {}

    def build(self) -> Body:
        for number, given in enumerate(self.graph.inputs):
            self.values[given.name] = self.nodes.placeholder(f"x{number}")
        held = {weight.name: _make_weight(weight) for weight in self.graph.weights}
        for number, name in enumerate(held):
            node = self.nodes.create_node("get_attr", name, name=f"w{number}")
            self.weights[name] = node
        for number, op in enumerate(self.graph.ops):
            self.values[op.name] = self._write_op(op, f"v{number}")
        self.nodes.output(tuple(self.values[name] for name in self.graph.outputs))
        return Body(self.nodes, held, {node: name for name, node in self.values.items()})

    def _write_op(self, op: Op, name: str) -> fx.Node:
        try:
            target, args, kwargs = self._parse_call(op)
        except NotKnown as error:
            given = [self.values[name] for name in op.inputs]
            given += [self._find_weight(name) for name in op.weights]
            target, args, kwargs = Refusal(str(error)), given, {}
        return self.nodes.create_node("call_function", target, tuple(args), kwargs, name=name)

    def _parse_call(self, op: Op) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        match = _CALL.fullmatch(op.call)
        if match is None:
            raise NotKnown(f"{op.call[:80]!r} is no call")
        dtype, name, arguments = match.groups()
        target = find_target(name)
        parser = _Arguments(arguments, lambda token: self._resolve(op, token))
        args, kwargs = parser.parse()
        plain = getattr(target, "target", target)
        if isinstance(plain, OpOverload):
            known = {argument.name for argument in plain._schema.arguments}
            if not known.issuperset(kwargs):
                raise NotKnown(f"{name} has no argument {min(kwargs.keys() - known)!r}")
            if "device" in known:
                kwargs.setdefault("device", torch.device("cpu"))
        elif kwargs:
            raise NotKnown(f"{name} takes no arguments by name")
        if dtype is not None:
            target = _Autocast(target, _find_dtype(dtype))
        return target, args, kwargs

    def _find_weight(self, name: str) -> fx.Node:
        return self.weights[self.graph.weight_by_name[name].name]

    def _resolve(self, op: Op, token: str) -> fx.Node | int:
        """The node behind `%0`, `@1` or `16*b+1`."""
        if token[0] not in "%@":
            return self._write_scalar(*parse_dim(token))
        names = op.inputs if token[0] == "%" else op.weights
        if int(token[1:]) >= len(names):
            raise NotKnown(f"{token} is not among its {len(names)} operands")
        name = names[int(token[1:])]
        return self.values[name] if token[0] == "%" else self._find_weight(name)

    def _write_scalar(self, scale: int, offset: int) -> fx.Node:
        """scale * b + offset, with b read off an input."""
        if max(scale, abs(offset)) >= MAX_NUMBER:
            raise NotKnown("a number beyond 64 bits")
        if (scale, offset) not in self.scalars:
            given, index, factor, shift = self._find_batch_dim()
            size = (given, index, factor, shift, scale, offset)
            self.scalars[scale, offset] = self.nodes.call_function(read_size, size)
        return self.scalars[scale, offset]

    def _find_batch_dim(self) -> tuple[fx.Node, int, int, int]:
        for given in self.graph.inputs:
            for index, dim in enumerate(given.spec.shape):
                if isinstance(dim, str) and parse_dim(dim)[0]:
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
        self._depth = 0

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
            return _read_text(token)
        if kind == "number":
            return _read_number(token)
        if kind in ("mark", "dim"):
            return self._resolve(token)
        if kind == "word":
            return _find_word(token)
        if token == "[":
            return self._list()
        raise NotKnown(f"unexpected {token!r}")

    def _list(self) -> list[Any]:
        items: list[Any] = []
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotKnown(f"lists deeper than {MAX_DEPTH}")
        while self._peek() != ("sign", "]"):
            items.append(self._value())
            if self._peek() != ("sign", "]"):
                self._expect(",")
        self._take()
        self._depth -= 1
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


def _read_number(token: str) -> int | float:
    if not re.fullmatch(r"-?\d+", token):
        return float(token)
    if abs(int(token)) >= MAX_NUMBER:
        raise NotKnown("a number beyond 64 bits")
    return int(token)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def _read_text(token: str) -> str:
    """The text of a literal, read by hand: `ast.literal_eval` compiles what it reads."""
    if re.search(r"\\[^ntr\\'\"]", token):
        raise NotKnown(f"cannot read {token[:20]!r}")
    return re.sub(r"\\(.)", lambda match: _ESCAPES[match[1]], token[1:-1])


def _find_word(word: str) -> Any:
    """None, a truth value, a dtype, a layout, a memory format or a device."""
    if word in _WORDS:
        return _WORDS[word]
    if word in _DEVICES:
        return torch.device(word)
    found = vars(torch).get(word)
    if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        return found
    raise NotKnown(f"{word[:80]!r} is not known")


def _find_dtype(word: str) -> torch.dtype:
    found = _find_word(word)
    if not isinstance(found, torch.dtype):
        raise NotKnown(f"{word[:80]!r} is no dtype")
    return found


def _make_weight(weight: Weight) -> torch.Tensor:
    dtype = getattr(torch, weight.spec.dtype)
    tensor = torch.empty(weight.spec.sizes(1), dtype=dtype, device="meta")
    is_trained = weight.trainable and (dtype.is_floating_point or dtype.is_complex)
    return torch.nn.Parameter(tensor) if is_trained else tensor


class _Autocast:
    """An op under autocast, on the device of its tensors."""

    def __init__(self, target: Callable[..., Any], dtype: torch.dtype) -> None:
        self.target, self.dtype = target, dtype

    def __str__(self) -> str:
        return str(self.target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = next((each.device.type for each in args if isinstance(each, torch.Tensor)), "cpu")
        lower = self.dtype in (torch.float16, torch.bfloat16)
        with torch.autocast(device, self.dtype if lower else None, enabled=lower):
            return self.target(*args, **kwargs)


class Refusal:
    """A call that does not run, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __str__(self) -> str:
        return "refused"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotKnown(self.reason)
