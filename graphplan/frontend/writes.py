"""Writes: which inputs an op changes in place, and who owns the memory that a tensor shows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from graphplan.frontend.nodes import fake_value
from graphplan.frontend.opaque import OpaqueOp
from graphplan.frontend.targets import AutocastOp, OutOfPlace

aten = torch.ops.aten

_STATISTICS = {
    aten.batch_norm.default: 5,
    aten.instance_norm.default: 5,
    aten.native_batch_norm.default: 5,
    aten.cudnn_batch_norm.default: 5,
    aten.miopen_batch_norm.default: 5,
}
"""Ops that write arguments 3 and 4, the running statistics, without saying so in their schema, and
the argument that switches it on."""


def storage_of(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common if they share memory."""
    return int(tensor.untyped_storage()._cdata)


def memory_of(node: fx.Node) -> Hashable:
    """What two nodes have in common whose tensors share memory; None where there is no tensor.

    A copy of a node shares its traced value and is told apart by a mark of its own.
    """
    value = fake_value(node)
    if not isinstance(value, torch.Tensor):
        return None
    return node.meta.get("memory") or storage_of(value)


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """The inputs that an op writes in place."""
    target = node.target.target if isinstance(node.target, AutocastOp) else node.target
    if node.op != "call_function" or isinstance(target, OutOfPlace):
        return []
    written: list[Any] = []
    if isinstance(target, OpaqueOp):
        written = [node.args[position] for position in target.written_positions()]
    elif target in _STATISTICS:
        written = list(node.args[3:5]) if node.args[_STATISTICS[target]] else []
    elif isinstance(target, OpOverload):
        written = _declared_writes(node, target)
    return [value for value in written if isinstance(value, fx.Node)]


def _declared_writes(node: fx.Node, target: OpOverload) -> list[Any]:
    arguments = target._schema.arguments
    given = dict(zip((arg.name for arg in arguments), node.args, strict=False)) | node.kwargs
    written: list[Any] = []
    for arg in arguments:
        value = given.get(arg.name)
        if arg.alias_info is not None and arg.alias_info.is_write:
            written += value if isinstance(value, (list, tuple)) else [value]
    return written
