"""The batch of a trace: symbolic where torch.export can keep it so, else unified, else fixed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from graphplan.frontend.assumptions import list_assumptions
from graphplan.frontend.attempt import Attempt, AttemptFailed
from graphplan.frontend.dynamic import explain_fixed, tensor_placeholders
from graphplan.frontend.example import Example, fix_batch
from graphplan.frontend.functional import Tangled
from graphplan.frontend.nodes import fake_value
from graphplan.frontend.normalize import normalize_graph
from graphplan.frontend.scalars import learn_sizes
from graphplan.frontend.unify import NotAlike, unify_graphs
from graphplan.frontend.withloss import PREFIX, WithLoss
from graphplan.nouns.names import MAX_VALUE, fit_text
from graphplan.nouns.opgraph import Assumption
from graphplan.nouns.tensor import TensorSpec


@dataclass(frozen=True)
class Traced:
    """A trace that came through, normalised."""

    graph: fx.Graph
    attempt: Attempt
    """Holds what the `get_attr` nodes of the graph name."""
    module: nn.Module
    """`WithLoss` around the user's module when there is a loss."""
    example: Example
    specs: dict[str, TensorSpec]
    """Of the graph's inputs, by name."""
    method: str
    assumptions: tuple[Assumption, ...]


Trace = Callable[[Example], Attempt]
Resize = Callable[[int], Example]
"""The example at another batch size."""


def trace_batched(
    trace: Trace, module: nn.Module, example: Example, *, resize: Resize | None, method: str
) -> Traced:
    """A trace for any batch size where that is possible, else for that of the example.

    Raises AttemptFailed.
    """
    attempt = trace(example)
    reason = explain_fixed(attempt, example)
    found = tuple(list_assumptions(attempt, module))
    if reason is None:
        specs = _name_specs(attempt, example)
        graph = _normalize(attempt, module, specs)
        return Traced(graph, attempt, module, example, specs, method, found)
    if resize is not None:
        unified = _trace_unified(trace, module, example, resize, method, (reason, *found))
        if unified is not None:
            return unified
    example = fix_batch(example)
    attempt = trace(example)
    specs = _name_specs(attempt, example)
    graph = _normalize(attempt, module, specs)
    fixed = Assumption(
        kind="fixed batch",
        text=f"the batch size is fixed to {example.batch_size}: {reason.text}",
        source=reason.source,
    )
    return Traced(graph, attempt, module, example, specs, method, (fixed, *found))


def _trace_unified(
    trace: Trace,
    module: nn.Module,
    example: Example,
    resize: Resize,
    method: str,
    assumptions: tuple[Assumption, ...],
) -> Traced | None:
    """A graph for any batch size from traces at three; None when they differ too much."""
    sizes = (example.batch_size, example.batch_size + 1, 3 * example.batch_size + 5)
    attempts = {size: trace(fix_batch(resize(size))) for size in sizes}
    graphs = {
        size: _normalize(attempt, module, _name_specs(attempt, fix_batch(resize(size))))
        for size, attempt in attempts.items()
    }
    first = attempts[sizes[0]]
    specs = _name_specs(first, example)
    try:
        graph = unify_graphs(graphs, specs)
        _check_constants(graph, list(attempts.values()))
    except NotAlike:
        return None
    reason, *others = assumptions
    linear = Assumption(
        kind="linear batch",
        text=f"sizes are taken to be linear in the batch size, as at {sizes}: {reason.text}",
        source=reason.source,
    )
    return Traced(graph, first, module, example, specs, method, (linear, *others))


def _check_constants(graph: fx.Graph, attempts: Sequence[Attempt]) -> None:
    """Constants that the forward made must not depend on the batch size."""
    for node in graph.find_nodes(op="get_attr"):
        held = [operator.attrgetter(str(node.target))(attempt.body) for attempt in attempts]
        if not isinstance(held[0], torch.Tensor) or isinstance(held[0], FakeTensor):
            continue
        if any(each.shape != held[0].shape or not each.equal(held[0]) for each in held):
            raise NotAlike(f"constant {node.target!r}")


def _name_specs(attempt: Attempt, example: Example) -> dict[str, TensorSpec]:
    nodes = tensor_placeholders(attempt.body.graph)
    for node in nodes:
        node.name = fit_text(node.name, most=MAX_VALUE).replace(".", "_")
    return {node.name: spec for node, spec in zip(nodes, example.specs, strict=True)}


def _normalize(attempt: Attempt, module: nn.Module, specs: dict[str, TensorSpec]) -> fx.Graph:
    nodes = tensor_placeholders(attempt.body.graph)
    sizes = learn_sizes([fake_value(node) for node in nodes], list(specs.values()))
    prefix = PREFIX if isinstance(module, WithLoss) else ""
    try:
        return normalize_graph(attempt.body, specs=specs, sizes=sizes, prefix=prefix)
    except Tangled as error:
        attempt.watch.modules[:] = [module.get_submodule(error.module)]
        raise AttemptFailed(attempt.watch) from error
