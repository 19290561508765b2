"""Deferred weight gradients: the backward split into its input half (I) and its weight half (W).

An op that combines data with weights (`linear(x, w)`) is run on a copy of its data that is cut off
from the rest of the graph, so that it has a small autograd graph of its own:

    x ----.                               x --> x'  --.
           linear --> y     becomes                    linear --> y'   --> y
    w ----'                               w ----------'

The input half runs the large graph as usual. When it comes to y it computes the gradient of x' only
and keeps (y', gradient of y'); everything else that the large graph had saved is freed. The weight
half is then one call of the autograd engine that starts at all kept y' at once. What remains in
memory between the two is what the weight gradients need: inputs and output gradients of the ops
with weights (the memory rule of nouns/prices.py). Split backward: Zero Bubble Pipeline Parallelism,
arXiv 2401.10241.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

Kept = list[tuple[torch.Tensor | GradientEdge, torch.Tensor]]
"""Places in the graph from which the weight half starts, each with its gradient."""


def find_data(graph: fx.Graph, inputs: Collection[str], flowing: Collection[str]) -> set[fx.Node]:
    """Nodes through which a gradient flows from the outputs to the `inputs` that need one.

    `flowing` names the ops that the gradient of the loss passes.
    """
    data: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            if node.name in inputs:
                data.add(node)
        elif node.name in flowing and not data.isdisjoint(node.all_input_nodes):
            data.add(node)
    return data


def find_mixed(
    graph: fx.Graph, data: Collection[fx.Node], trainable: Collection[str]
) -> list[fx.Node]:
    """Nodes of `data` that also read trainable weights, or values made of them alone."""
    made_of_weights: set[fx.Node] = set()
    mixed = []
    for node in graph.nodes:
        reads_weights = not made_of_weights.isdisjoint(node.all_input_nodes)
        if node.op == "get_attr" and str(node.target) in trainable:
            made_of_weights.add(node)
        elif reads_weights and node in data:
            mixed.append(node)
        elif reads_weights and node.op == "call_function":
            made_of_weights.add(node)
    return mixed


def call_deferred(kept: Kept, function: Callable[..., Any], *data: torch.Tensor) -> Any:
    """function(*data), whose weight gradients wait in `kept` after the input half has run."""
    apply: Callable[..., Any] = _Deferred.apply
    return apply(kept, function, *data)


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kept: Kept, function: Callable[..., Any], *data: torch.Tensor) -> Any:
        with torch.enable_grad():
            ctx.leaves = [each.detach().requires_grad_(each.requires_grad) for each in data]
            made = function(*ctx.leaves)
        ctx.kept = kept
        ctx.made = made if isinstance(made, (tuple, list)) else (made,)
        results = tuple(each.detach() for each in ctx.made)
        ctx.mark_non_differentiable(
            *(one for one, made in zip(results, ctx.made, strict=True) if not made.requires_grad)
        )
        ctx.set_materialize_grads(False)
        return results if isinstance(made, (tuple, list)) else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        pairs = [
            (made, gradient)
            for made, gradient in zip(ctx.made, gradients, strict=True)
            if gradient is not None and made.requires_grad
        ]
        ctx.kept.extend(pairs)
        leaves = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        found = iter(input_half(pairs, leaves))
        return None, None, *(next(found) if leaf.requires_grad else None for leaf in ctx.leaves)


def input_half(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], leaves: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Gradients of the leaves of one op's own graph, which stays for the weight half."""
    if not pairs:
        return [None] * len(leaves)
    tensors, gradients = zip(*pairs, strict=True)
    return torch.autograd.grad(tensors, leaves, gradients, retain_graph=True, allow_unused=True)


def weight_half(kept: Kept, weights: Sequence[torch.Tensor]) -> None:
    """Accumulate the weight gradients that the input half left out, and free what it kept."""
    if kept:
        tensors, gradients = zip(*kept, strict=True)
        kept.clear()
        torch.autograd.backward(tensors, gradients, inputs=list(weights))
