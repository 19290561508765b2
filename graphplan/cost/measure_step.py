"""The whole model's step: what the sum over ops is calibrated against.

Runs the captured module forward and backward as training does, gradients added to those of an
earlier micro-batch. The user's weights are read, never changed: gradients land on other tensors and
buffers are copies. Weights that were never allocated are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from graphplan.cost.measure_body import Body, Line
from graphplan.cost.measure_clock import Clock
from graphplan.cost.measure_tensors import find_bound, find_offsets, make_tensor
from graphplan.cost.measure_unit import Effort, repeat
from graphplan.cost.measure_units import Values
from graphplan.cost.saved import count_saved_bytes, count_weight_bytes
from graphplan.nouns.opgraph import OpGraph

STEP_EFFORT = Effort(warm_up=1, min_repeats=4, budget_s=0.4, patience=5.0, calm=0.1)
MEMORY_SHARE = 0.8
"""Share of the free memory that a whole step may need."""


def fits_memory(graph: OpGraph, batch_size: int, clock: Clock, *, copies: int = 1) -> bool:
    """Whether weights, gradients and activations of a whole step find room, so many times."""
    needed = 2 * count_weight_bytes(graph) + 2 * count_saved_bytes(graph, batch_size)
    return copies * needed < MEMORY_SHARE * clock.free_bytes()


def measure_step(
    body: Body,
    graph: OpGraph,
    values: Values,
    clock: Clock,
    *,
    batch: Mapping[str, torch.Tensor] | None = None,
    effort: Effort,
) -> tuple[float, float]:
    """(seconds, spread) of one forward and backward; `batch` gives the inputs by name."""
    step = prepare_step(body, graph, values, clock.device, batch=batch)

    def sample() -> float:
        start = clock.mark()
        step()
        end = clock.mark()
        clock.finish()
        return clock.seconds(start, end)

    with torch.random.fork_rng(enabled=clock.device.type == "cpu"), torch.enable_grad():
        return repeat(sample, clock, effort)


def prepare_step(
    body: Body,
    graph: OpGraph,
    values: Values,
    device: torch.device,
    *,
    batch: Mapping[str, torch.Tensor] | None = None,
) -> Callable[[], None]:
    """A function that runs one step on weights and inputs of its own."""
    held = {target: _copy_weight(each, device) for target, each in body.held.items()}
    line = Line(body.graph, held, device)
    given = [
        _make_input(node, body.names[node], values, device, batch or {})
        for node in body.graph.find_nodes(op="placeholder")
    ]
    position = _find_ends(graph)

    def step() -> None:
        outputs = line(*given)
        ends = [outputs[i] for i in position if _needs_grad(outputs[i])]
        torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])

    return step


def _make_input(
    node: fx.Node,
    name: str,
    values: Values,
    device: torch.device,
    batch: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    if name in batch:
        return batch[name].to(device)
    return make_tensor(
        values[node],
        device=device,
        bound=find_bound(node, values.__getitem__),
        offsets_of=find_offsets(node, values.__getitem__),
    )


def _find_ends(graph: OpGraph) -> list[int]:
    """Positions of the outputs that the backward starts from."""
    if graph.loss is not None:
        return [graph.outputs.index(graph.loss)]
    return list(range(len(graph.outputs)))


def _needs_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _copy_weight(held: Any, device: torch.device) -> Any:
    """A weight that shares memory with the user's but has its own gradient."""
    if not isinstance(held, torch.Tensor):
        return held
    is_parameter = isinstance(held, torch.nn.Parameter)
    if held.is_meta:
        fresh = make_tensor(held, device=device)
        if held.is_floating_point() and held.dim() > 1:
            fresh.sub_(0.55).mul_(0.1)
    else:
        fresh = held.detach().to(device) if is_parameter else held.detach().clone().to(device)
    return torch.nn.Parameter(fresh, requires_grad=held.requires_grad) if is_parameter else fresh
