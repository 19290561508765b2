"""FLOPs and bytes of every op of a graph, forward and backward, from calls and shapes; no torch.

A multiply-add counts two FLOPs. Bytes are those that a kernel must move at least: every operand
read once, every result written once. The backward has two halves: gradients of activations (task
kind I) and of weights (W). A value computed from weights alone (a transposed or cast weight) counts
as a weight. Gradients that nobody needs cost nothing.

Assumptions, and when they break: kernels do not re-read operands (large convolutions do); attention
is one fused kernel and skips what a causal mask removes (torch's FLOP counter counts it in full);
embeddings have dense gradients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphplan.cost.formulas import (
    Call,
    Operand,
    count_forward_bytes,
    count_forward_flops,
    count_gradient,
)
from graphplan.cost.kernels import Kernels, list_forward, list_gradient
from graphplan.cost.kinds import COMPUTE_KINDS, Kind, classify_op
from graphplan.errors import UnknownName
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.tensor import ITEM_BYTES, TensorSpec

FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})
"""Dtypes that a training precision replaces."""
PRECISION_BYTES = {name: ITEM_BYTES[name] for name in sorted(FLOATS)} | {"tf32": 4}
"""Bytes of an element by training precision; tf32 stores float32 and computes with fewer bits."""
_ALL_BYTES = ITEM_BYTES | PRECISION_BYTES
_OPERAND = re.compile(r"([%@])(\d+)")
_AUTOCAST = re.compile(r"autocast\[\w+, (bfloat16|float16)\]")
OperandSpec = tuple[TensorSpec, bool, bool]
"""Spec, whether it needs a gradient, whether it is a weight."""


class Work(Noun, frozen=True, kw_only=True):
    """What one op computes and moves at one batch size, by pass."""

    kind: Kind
    dtype: str
    """The dtype that decides the arithmetic rate."""
    forward_flops: int = 0
    input_grad_flops: int = 0
    weight_grad_flops: int = 0
    forward_bytes: int = 0
    input_grad_bytes: int = 0
    weight_grad_bytes: int = 0
    forward: Kernels = ()
    """What is really run; the bytes above are the least."""
    input_grad: Kernels = ()
    weight_grad: Kernels = ()
    result_bytes: int = 0
    live_bytes: int = 0
    """Results of the forward, or the gradients in and out of the backward, whichever is more."""

    @property
    def counted_flops(self) -> int:
        """Forward and backward FLOPs of the kinds that a FLOP counter counts."""
        if self.kind not in COMPUTE_KINDS:
            return 0
        return self.forward_flops + self.input_grad_flops + self.weight_grad_flops


class WorkCounter:
    """Counts the work of the ops of one graph; equal ops are counted once."""

    def __init__(self, graph: OpGraph, *, precision: str | None = None) -> None:
        """`precision` replaces the floating dtypes of the graph."""
        if precision is not None and precision not in PRECISION_BYTES:
            raise UnknownName("precision", precision, PRECISION_BYTES)
        self._graph = graph
        self._precision = precision
        self._results_by_op = _collect_results(graph)
        self._from_weights = find_weight_values(graph)
        self._known: dict[tuple[object, ...], Work] = {}
        self._operands: dict[str, tuple[OperandSpec, ...]] = {}

    def count_op(self, op: Op, batch_size: int) -> Work:
        """The work of an op at a batch size."""
        specs = self.list_operands(op)
        results = (op.size,) if op.size else self._results_by_op[op.name]
        key = (op.target, op.call, op.alias is None, specs, results, batch_size)
        if key not in self._known:
            self._known[key] = self._count_call(op, specs, results, batch_size)
        return self._known[key]

    def list_operands(self, op: Op) -> tuple[OperandSpec, ...]:
        """Operands in the order of the call, those without one tensor left out."""
        if op.name not in self._operands:
            self._operands[op.name] = tuple(self._find_operands(op))
        return self._operands[op.name]

    def _find_operands(self, op: Op) -> Iterable[OperandSpec]:
        for mark, index in _OPERAND.findall(op.call):
            if int(index) >= len(op.weights if mark == "@" else op.inputs):
                continue  # A file may say so; such an op cannot be measured.
            if mark == "@":
                weight = self._graph.weight_by_name[op.weights[int(index)]]
                yield weight.spec, op.needs_backward and weight.trainable, True
                continue
            name = op.inputs[int(index)]
            spec, producer = self._graph.size_of(name), self._graph.op_by_name.get(name)
            needs_grad = op.needs_backward and producer is not None and producer.needs_backward
            if spec is not None:
                yield spec, needs_grad, name in self._from_weights

    def _count_call(
        self,
        op: Op,
        specs: tuple[OperandSpec, ...],
        results: tuple[TensorSpec, ...],
        batch_size: int,
    ) -> Work:
        call = Call(
            name=op.kind,
            text=op.call,
            kind=classify_op(op),
            operands=tuple(self._to_operand(*each, batch_size) for each in specs),
            results=tuple(self._to_operand(spec, False, False, batch_size) for spec in results),
        )
        return _count_work(call, self._find_dtype(op, (*results, *(spec for spec, _, _ in specs))))

    def _find_dtype(self, op: Op, specs: Iterable[TensorSpec]) -> str:
        """The dtype of the arithmetic: an autocast block's, else the first float tensor's."""
        if cast := _AUTOCAST.match(op.call):
            return cast[1]
        return next((self._dtype_of(s) for s in specs if s.dtype in FLOATS), "float32")

    def _to_operand(
        self, spec: TensorSpec, needs_grad: bool, weight: bool, batch_size: int
    ) -> Operand:
        return Operand(
            sizes=spec.sizes(batch_size),
            item_bytes=_ALL_BYTES[self._dtype_of(spec)],
            grad=("weight" if weight else "input") if needs_grad else None,
            weight=weight,
        )

    def _dtype_of(self, spec: TensorSpec) -> str:
        return self._precision if self._precision and spec.dtype in FLOATS else spec.dtype


def count_work(graph: OpGraph, batch_size: int, *, precision: str | None = None) -> dict[str, Work]:
    """The work of every op of a graph at a batch size."""
    counter = WorkCounter(graph, precision=precision)
    return {op.name: counter.count_op(op, batch_size) for op in graph.ops}


def find_weight_values(graph: OpGraph) -> frozenset[str]:
    """Values computed from weights alone: their gradients belong to the weight half."""
    found: set[str] = set()
    for op in graph.ops:
        if (op.inputs or op.weights) and all(name in found for name in op.inputs):
            found.add(op.name)
    return frozenset(found)


def _collect_results(graph: OpGraph) -> dict[str, tuple[TensorSpec, ...]]:
    """Tensors of the ops that have several results: those of the getitem ops that follow."""
    several: dict[str, list[TensorSpec]] = {op.name: [] for op in graph.ops if op.size is None}
    for op in graph.ops:
        if (
            op.size is not None
            and op.kind == "getitem"
            and op.inputs[:1]
            and op.inputs[0] in several
        ):
            several[op.inputs[0]].append(op.size)
    return {name: tuple(specs) for name, specs in several.items()}


def _count_work(call: Call, dtype: str) -> Work:
    forward = count_forward_flops(call)
    input_flops, input_bytes = count_gradient(call, "input", forward)
    weight_flops, weight_bytes = count_gradient(call, "weight", forward)
    owned = 0 if call.kind == "view" else call.result_bytes
    gradients = sum(each.bytes for each in call.operands if each.grad and not each.weight)
    return Work(
        kind=call.kind,
        dtype=dtype,
        forward_flops=forward,
        input_grad_flops=input_flops,
        weight_grad_flops=weight_flops,
        forward_bytes=count_forward_bytes(call),
        input_grad_bytes=input_bytes,
        weight_grad_bytes=weight_bytes,
        forward=list_forward(call, dtype),
        input_grad=list_gradient(call, dtype, "input"),
        weight_grad=list_gradient(call, dtype, "weight"),
        result_bytes=call.result_bytes,
        live_bytes=owned + (gradients if input_bytes else 0),
    )
