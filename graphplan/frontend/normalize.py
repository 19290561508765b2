"""Normalisation: the exported graph becomes one that can be cut anywhere.

Afterwards: placeholders are tensors; each weight is read by one `get_attr` node; `no_grad` and
autocast blocks are inlined; checks are gone; only weights are written in place; scalars are
functions of the batch size; nothing is dead. Node names stay those of torch.export where possible.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx

from graphplan.frontend.functional import functionalize_graph, viewed_input
from graphplan.frontend.nodes import fake_value, is_scalar
from graphplan.frontend.regions import fence_gradients, inline_regions, wrap_autocast
from graphplan.frontend.scalars import BatchSizes, rewrite_scalars
from graphplan.frontend.targets import is_random, plain_op
from graphplan.frontend.unfold import move_path, unfold_repeats
from graphplan.frontend.writes import written_nodes
from graphplan.nouns.tensor import TensorSpec

aten = torch.ops.aten

_CHECKS = {
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    torch._check,
    torch._check_is_size,
}


def normalize_graph(
    module: fx.GraphModule, *, specs: Mapping[str, TensorSpec], sizes: BatchSizes, prefix: str
) -> fx.Graph:
    """Run all passes on an exported module, which they consume.

    `specs` describes its tensor inputs by name; `prefix` is what the tracer put before the names
    of the user's module.
    """
    inline_regions(module)
    drop_checks(module.graph)
    merge_weights(module)
    unfold_repeats(module.graph)
    drop_identities(module.graph)
    name_modules(module.graph, prefix=prefix)
    fence_gradients(module.graph)
    graph = functionalize_graph(module.graph)
    drop_copies(graph)
    wrap_autocast(graph)
    drop_dead(graph)
    graph = rewrite_scalars(graph, specs, sizes)
    drop_dead(graph)
    return graph


def drop_checks(graph: fx.Graph) -> None:
    """Remove assertions; their conditions die with them."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target in _CHECKS:
            graph.erase_node(node)


def merge_weights(module: fx.GraphModule) -> None:
    """Read each weight once, under the first of its names."""
    first: dict[int, fx.Node] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        held = operator.attrgetter(str(node.target))(module)
        if isinstance(held, torch.Tensor):
            node.meta.setdefault("val", held)
        kept = first.setdefault(id(held), node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            module.graph.erase_node(node)


def name_modules(graph: fx.Graph, *, prefix: str) -> None:
    """Note the path of the module that every node was written in; `loss` for the loss."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        paths = [path for path, _ in stack.values() if not path.startswith("_empty_nn")]
        path = str(paths[-1]).split("@")[0] if paths else ""
        path = move_path(path, node)
        node.meta["path"] = path
        is_outside = prefix and not f"{path}.".startswith(prefix)
        node.meta["module"] = "loss" if is_outside else f"{path}.".removeprefix(prefix)[:-1]


def drop_copies(graph: fx.Graph) -> None:
    """Read constants directly: nothing writes into them any more."""
    for node in list(graph.nodes):
        if node.target in (aten.lift_fresh_copy.default, aten.lift_fresh.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is aten.detach.default:
            source = node.args[0]
            if source.op == "get_attr" and not fake_value(source).requires_grad:
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def drop_identities(graph: fx.Graph) -> None:
    """Remove ops that return their input as it is: a cast to the same dtype, a slice of all."""
    for node in list(graph.nodes):
        source = viewed_input(node) if node.op == "call_function" else None
        if source is None or plain_op(node.target) is aten.detach.default or written_nodes(node):
            continue
        old, new = fake_value(source), fake_value(node)
        if _layout(old) == _layout(new):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """All that tells two tensors on one storage apart; symbolic sizes by their expressions."""
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    marks = (tensor.is_conj(), tensor.is_neg())  # of what torch puts off
    return (tensor.dtype, tensor.dim(), *marks, *(str(size) for size in sizes))


def drop_dead(graph: fx.Graph) -> None:
    """Remove what no output needs; writes into weights and random draws stay."""
    for node in reversed(list(graph.nodes)):
        if not node.users and not _has_effect(node):
            graph.erase_node(node)


def _has_effect(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function" or is_scalar(fake_value(node)):
        return False
    return bool(written_nodes(node)) or is_random(node.target)
