"""Lowering: a normalised fx graph and its observed runs become the ops of an OpGraph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from graphplan.frontend.example import dtype_name
from graphplan.frontend.expected import Shares, expect_spec, largest_shape
from graphplan.frontend.observe import Run
from graphplan.frontend.render import render_call
from graphplan.frontend.scalars import depends_on_data, is_scalar_node
from graphplan.frontend.targets import target_name
from graphplan.frontend.writes import written_nodes
from graphplan.nouns.names import MAX_CALL, MAX_TARGET, fit_path, fit_text
from graphplan.nouns.opgraph import Op
from graphplan.nouns.tensor import TensorSpec, format_dim

Runs = Sequence[tuple[int, Run]]
"""Observed runs with their batch sizes: two for a dynamic batch, one otherwise."""


def lower_ops(graph: fx.Graph, runs: Runs, *, loss: fx.Node | None) -> tuple[Op, ...]:
    """The ops of a normalised graph, in its order."""
    flowing = find_gradient_flow(graph, runs[0][1], loss=loss)
    shares = Shares(runs[0][1])
    return tuple(_lower_op(node, runs, flowing, shares) for node in graph.nodes if is_op(node))


def is_op(node: fx.Node) -> bool:
    """Whether a node of a normalised graph is an op of the OpGraph."""
    return node.op == "call_function" and not is_scalar_node(node)


def input_values(node: fx.Node) -> list[fx.Node]:
    """The values that an op reads: scalars and weights left out."""
    return [
        given
        for given in node.all_input_nodes
        if given.op != "get_attr" and not is_scalar_node(given)
    ]


def input_weights(node: fx.Node) -> list[fx.Node]:
    """The weights that an op reads."""
    given = [given for given in node.all_input_nodes if given.op == "get_attr"]
    return [node for node in given if isinstance(node.meta.get("val"), torch.Tensor)]


def find_gradient_flow(graph: fx.Graph, run: Run, *, loss: fx.Node | None) -> set[fx.Node]:
    """The ops that the gradient of the loss passes; without a loss, of every output."""
    ends = [loss] if loss is not None else graph.output_node().all_input_nodes
    flowing = {node for node in ends if _requires_grad(run[node].value)}
    for node in reversed(graph.nodes):
        if node in flowing:
            flowing |= {given for given in input_values(node) if _requires_grad(run[given].value)}
    return flowing


def _requires_grad(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def _lower_op(node: fx.Node, runs: Runs, flowing: set[fx.Node], shares: Shares) -> Op:
    first = runs[0][1][node]
    keeps = node in flowing or (
        node.target is operator.getitem and flowing.issuperset(node.all_input_nodes)
    )
    internal = [(batch_size, run[node].internal_bytes) for batch_size, run in runs]
    largest = fit_spec([(batch_size, run[node].value) for batch_size, run in runs])
    is_known = not (isinstance(first.value, torch.Tensor) and depends_on_data(first.value))
    return Op(
        name=node.name,
        target=fit_text(target_name(node.target), most=MAX_TARGET),
        call=fit_text(_render(node), most=MAX_CALL),
        inputs=tuple(given.name for given in input_values(node)),
        weights=tuple(str(given.target) for given in input_weights(node)),
        output=largest if is_known else None,
        expected=expect_spec(largest, first.value, shares),
        module=fit_path(str(node.meta.get("module", ""))),
        needs_backward=node in flowing,
        alias=_owner_name(first.alias) if first.alias else None,
        saved=tuple(_owner_name(kept) for kept in first.saved if kept.op != "get_attr")
        if keeps
        else (),
        saved_bytes=fit_bytes(internal) if keeps else (0, 0),
        mutates=_mutated_weights(node, runs[0][1]),
    )


def _render(node: fx.Node) -> str:
    return render_call(node, inputs=input_values(node), weights=input_weights(node))


def _mutated_weights(node: fx.Node, run: Run) -> tuple[str, ...]:
    owners = [run[written].alias or written for written in written_nodes(node)]
    return tuple(dict.fromkeys(str(owner.target) for owner in owners if owner.op == "get_attr"))


def _owner_name(node: fx.Node) -> str:
    return str(node.target) if node.op == "get_attr" else node.name


def fit_spec(values: Sequence[tuple[int, Any]]) -> TensorSpec | None:
    """The spec of a tensor seen at one or two batch sizes; None for all else.

    Where sizes depend on data it is that of the largest that they can be.
    """
    tensors = [value for _, value in values if isinstance(value, torch.Tensor)]
    if not tensors:
        return None
    dims = zip(*(largest_shape(tensor) for tensor in tensors), strict=True)
    sizes = [batch_size for batch_size, _ in values]
    shape = tuple(format_dim(*_fit_line(sizes, column)) for column in dims)
    return TensorSpec(dtype=dtype_name(tensors[0].dtype), shape=shape)


def _fit_line(batch_sizes: Sequence[int], values: Sequence[int]) -> tuple[int, int]:
    if len(batch_sizes) == 1:
        return 0, int(values[0])
    scale = (values[1] - values[0]) // (batch_sizes[1] - batch_sizes[0])
    return int(scale), int(values[0] - scale * batch_sizes[0])


def fit_bytes(values: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(constant, per sample) bytes; what does not grow linearly is rounded up to per-sample."""
    per_sample, constant = _fit_line([size for size, _ in values], [held for _, held in values])
    if constant < 0 or per_sample < 0:
        return 0, max(-(-held // size) for size, held in values)
    return constant, per_sample
