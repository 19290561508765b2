"""Scatter: put a changed view back into a copy of what it was a view of."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from graphplan.frontend.nodes import fake_value

aten = torch.ops.aten

_SAME_ELEMENTS = {
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.view_as.default,
    aten.reshape_as.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
}
_SAME_TENSOR = {
    aten.alias.default,
    aten.contiguous.default,
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.type_as.default,
    aten.dropout.default,
}
_OWN_INVERSE = {
    aten.transpose.int,
    aten.t.default,
    aten.swapaxes.default,
    aten.swapdims.default,
    aten.numpy_T.default,
    aten.mT.default,
}
_SCATTER_OF = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
    aten.as_strided.default: aten.as_strided_scatter.default,
}

_SPLITS = {
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.chunk.default,
}


def scatter_view(graph: fx.Graph, view: fx.Node, whole: fx.Node, part: fx.Node) -> fx.Node | None:
    """A node that is `whole` with the elements that `view` shows replaced by `part`.

    None when the view is of a kind that cannot be put back (an expanded one, say).
    """
    call = _scatter_call(view, whole, part)
    if call is None:
        return None
    if isinstance(call, fx.Node):
        return call
    target, args, kwargs = call
    node = graph.call_function(target, args, kwargs)
    source = _viewed(view)
    node.meta = {**view.meta, "val": fake_value(source)}
    return node


def _viewed(view: fx.Node) -> fx.Node:
    source = view.args[0]
    assert isinstance(source, fx.Node)
    return _viewed(source) if view.target is operator.getitem else source


def _scatter_call(view: fx.Node, whole: fx.Node, part: fx.Node) -> Any:
    rest = view.args[1:]
    target = view.target
    if target in _SCATTER_OF:
        return _SCATTER_OF[target], (whole, part, *rest), view.kwargs
    if target in _SAME_ELEMENTS:
        return aten.reshape_as.default, (part, whole), {}
    if target in _SAME_TENSOR:
        return part
    if target in _OWN_INVERSE:
        return target, (part, *rest), view.kwargs
    if target is aten.permute.default:
        order = [int(dim) % len(rest[0]) for dim in rest[0]]  # type: ignore[arg-type, union-attr]
        return target, (part, [order.index(dim) for dim in range(len(order))]), {}
    if target is operator.getitem:
        return _scatter_part(view, whole, part)
    return None


def _scatter_part(view: fx.Node, whole: fx.Node, part: fx.Node) -> Any:
    """One of several views: a piece of a split, or a slice of an unbind."""
    several, index = view.args
    assert isinstance(several, fx.Node) and isinstance(index, int)
    dim = several.args[-1] if len(several.args) > (1 if _is_unbind(several) else 2) else 0
    dim = several.kwargs.get("dim", dim)
    if _is_unbind(several):
        return aten.select_scatter.default, (whole, part, dim, index), {}
    if several.target not in _SPLITS:
        return None
    lengths = [piece.shape[dim] for piece in fake_value(several)]
    if not all(isinstance(length, int) for length in lengths):
        return None
    start = sum(lengths[:index])
    return aten.slice_scatter.default, (whole, part, dim, start, start + lengths[index]), {}


def _is_unbind(node: fx.Node) -> bool:
    return node.target is aten.unbind.int
