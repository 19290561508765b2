"""Regions: `no_grad` and `autocast` blocks of the model become marks on plain ops.

torch.export turns such a block into one node that holds a sub-graph; a planner must be able to cut
through it. Every op of the block is inlined and remembers its `Region`. Gradients are stopped where
a value leaves a block without gradients; an op under autocast runs in a context of its own.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch
from torch import fx

from graphplan.frontend.nodes import fake_value, is_float, tensor_inputs
from graphplan.frontend.targets import Autocast, AutocastOp
from graphplan.frontend.writes import written_nodes

_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


@dataclass(frozen=True)
class Region:
    """What surrounds an op; the default is the plain training forward."""

    grad: bool = True
    autocast: Autocast | None = None


def region_of(node: fx.Node) -> Region:
    """The region that a node was written in."""
    found = node.meta.get("region", Region())
    assert isinstance(found, Region)
    return found


def inline_regions(module: fx.GraphModule) -> None:
    """Replace each block by its ops, the nested ones too."""
    pending = [node for node in module.graph.nodes if node.target in (_SET_GRAD, _AUTOCAST)]
    while pending:
        node = pending.pop()
        copies = _inline_block(module, node)
        pending += [copy for copy in copies if copy.target in (_SET_GRAD, _AUTOCAST)]


def _inline_block(module: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    if node.target is _SET_GRAD:
        enabled, body, *operands = node.args
        region = replace(region_of(node), grad=bool(enabled))
    else:
        device, dtype, enabled, _, body, *operands = node.args
        found = dtype or torch.get_autocast_dtype(str(device))
        assert isinstance(found, torch.dtype)
        region = replace(region_of(node), autocast=Autocast(found, bool(enabled)))
    assert isinstance(body, fx.Node)
    graph = getattr(module, str(body.target)).graph
    inlined = dict(zip(graph.find_nodes(op="placeholder"), operands, strict=True))
    copies = []
    for inner in graph.nodes:
        if inner.op in ("placeholder", "output"):
            continue
        if inner.op == "get_attr":
            inner_name = f"{body.target}_{inner.target}".replace(".", "_")
            setattr(module, inner_name, getattr(getattr(module, str(body.target)), inner.target))
        with module.graph.inserting_before(node):
            copy = module.graph.node_copy(inner, lambda arg: inlined[arg])
        if inner.op == "get_attr":
            copy.target = inner_name
        copy.meta["region"] = region
        inlined[inner] = copy
        copies.append(copy)
    results = graph.output_node().args[0]
    for user in list(node.users):
        assert user.target is operator.getitem
        result = results[user.args[1]]
        user.replace_all_uses_with(inlined[result])
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    return copies


def fence_gradients(graph: fx.Graph) -> None:
    """Detach what leaves a block without gradients, where a gradient could flow, and what is
    written into a buffer there: the buffer must not remember where it comes from."""
    may_require: set[fx.Node] = set()
    for node in list(graph.nodes):
        value = fake_value(node)
        if node.op == "get_attr":
            if isinstance(value, torch.Tensor) and value.requires_grad:
                may_require.add(node)
        elif may_require.intersection(tensor_inputs(node)):
            if written_nodes(node) and not _grad_of(node):
                _detach_inputs(graph, node, may_require)
                continue
            may_require.add(node)
            if is_float(value) and not _grad_of(node):
                _detach_outside(graph, node)


def _grad_of(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return _grad_of(source)
    return region_of(node).grad


def _detach_outside(graph: fx.Graph, node: fx.Node) -> None:
    users = [user for user in node.users if user.op == "output" or _grad_of(user)]
    if not users:
        return
    with graph.inserting_after(node):
        fence = graph.call_function(torch.ops.aten.detach.default, (node,))
    fence.meta = {**node.meta, "region": Region()}
    for user in users:
        user.replace_input_with(node, fence)


def _detach_inputs(graph: fx.Graph, node: fx.Node, may_require: set[fx.Node]) -> None:
    for given in may_require.intersection(tensor_inputs(node)):
        with graph.inserting_before(node):
            fence = graph.call_function(torch.ops.aten.detach.default, (given,))
        fence.meta = {**given.meta, "region": region_of(node)}
        node.replace_input_with(given, fence)


def wrap_autocast(graph: fx.Graph) -> None:
    """Give every op of an autocast block a context of its own."""
    for node in graph.nodes:
        autocast = region_of(node).autocast
        if autocast is None or not autocast.enabled or node.target is operator.getitem:
            continue
        if node.op == "call_function" and tensor_inputs(node):
            node.target = AutocastOp(node.target, autocast)
