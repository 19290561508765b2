"""Dynamic batch: whether a trace kept the batch size symbolic, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from graphplan.frontend.attempt import Attempt
from graphplan.frontend.example import Example
from graphplan.frontend.nodes import fake_value, place_of_node
from graphplan.frontend.scalars import NotAffine, depends_on_data, learn_sizes
from graphplan.nouns.opgraph import Assumption


def tensor_placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The inputs of a traced graph that are tensors, in flat order."""
    nodes = graph.find_nodes(op="placeholder")
    return [node for node in nodes if isinstance(fake_value(node), torch.Tensor)]


def explain_fixed(attempt: Attempt, example: Example) -> Assumption | None:
    """Why the trace holds for one batch size only; None when it holds for any."""
    if example.batch != "dynamic":
        return None
    placeholders = tensor_placeholders(attempt.body.graph)
    for node, spec in zip(placeholders, example.specs, strict=True):
        for size, dim in zip(fake_value(node).shape, spec.shape, strict=True):
            if isinstance(dim, str) and not _is_symbolic(size):
                reason = (
                    f"the model uses size {size} of input {node.name!r} as a number (len(x), a loop"
                    " over the batch); x.shape[0] inside torch calls stays symbolic"
                )
                place = next(iter(attempt.watch.fixed_sizes), None)
                return Assumption(kind="batch size", text=reason, source=place)
    sizes = learn_sizes([fake_value(node) for node in placeholders], example.specs)
    for node, size in _all_sizes(attempt.body):
        try:
            sizes.fit_size(size)
        except NotAffine as error:
            reason = f"a size grows with the batch size as {error}"
            return Assumption(kind="batch size", text=reason, source=place_of_node(node))
    return None


def _is_symbolic(size: Any) -> bool:
    """A size that the tracer fixed still looks symbolic; its expression is a number."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def _all_sizes(body: fx.GraphModule) -> Iterator[tuple[fx.Node, Any]]:
    for part in body.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            for leaf in pytree.tree_leaves(fake_value(node)):
                sizes = leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,)
                for size in sizes:
                    if isinstance(size, torch.SymInt) and not depends_on_data(size):
                        yield node, size
