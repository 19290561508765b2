"""The optimizer's step: what the user's own optimizer takes for an element of the weights.

A plan names an optimizer, whose traffic the cost model counts; a model file may bring its own, in
whatever implementation. It is timed on weights of the model's sizes, cold as they are in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphplan.cost.measure_clock import Clock
from graphplan.cost.measure_unit import Effort, repeat
from graphplan.nouns.opgraph import OpGraph

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MOST_ELEMENTS = 1 << 25
"""A larger model is measured by its first weights."""
UPDATE_EFFORT = Effort(warm_up=2, min_repeats=6, budget_s=0.2, patience=3.0)


def measure_update(
    graph: OpGraph, make: MakeOptimizer, clock: Clock, effort: Effort
) -> tuple[float, float]:
    """(seconds of an element, spread)."""
    parameters = [
        torch.nn.Parameter(torch.ones(sizes, dtype=dtype, device=clock.device))
        for sizes, dtype in _list_weights(graph)
    ]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = make(parameters)
    elements = sum(parameter.numel() for parameter in parameters)

    def sample() -> float:
        start = clock.mark()
        optimizer.step()
        end = clock.mark()
        clock.finish()
        return clock.seconds(start, end) / elements

    return repeat(sample, clock, effort)


def name_update(graph: OpGraph, make: MakeOptimizer) -> str:
    """All that the time of an update depends on."""
    sizes = [str(each) for each in _list_weights(graph)]
    made = make([torch.nn.Parameter(torch.zeros(1))])
    kind = type(made)
    return f"update {kind.__module__}.{kind.__qualname__} {_describe(made.defaults)} {sizes}"


def _describe(defaults: dict[str, Any]) -> str:
    return repr({key: defaults[key] for key in sorted(defaults)})


def _list_weights(graph: OpGraph) -> Iterable[tuple[tuple[int, ...], torch.dtype]]:
    """Sizes and dtypes of the trained weights, the first ones of a large model."""
    room = MOST_ELEMENTS
    for weight in graph.weights:
        elements = weight.spec.num_elements(1)
        if weight.trainable and (room == MOST_ELEMENTS or elements <= room):
            room -= elements
            yield weight.spec.sizes(1), getattr(torch, weight.spec.dtype)
