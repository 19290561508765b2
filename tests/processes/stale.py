"""Stale training in one process: every stage's forward and backward use the version that is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from graphplan.frontend import Captured
from graphplan.nouns.plan import Plan
from tests.processes.models import CASES
from tests.processes.training import Result, Setup, build_model, make_batches, make_optimizer

Forward = Callable[[nn.Module, Sequence[Mapping[str, torch.Tensor]], Any], torch.Tensor]
"""Runs a model on the weights of every stage."""


def list_names(captured: Captured, plan: Plan) -> list[list[str]]:
    """Names of the trained weights of every stage."""
    held = {op: s for s, stage in enumerate(plan.stages.stages) for op in stage.ops}
    canonical = {a: w.name for w in captured.graph.weights for a in (w.name, *w.aliases)}
    trainable = {weight.name for weight in captured.graph.weights if weight.trainable}
    return [
        sorted(
            {
                canonical[name]
                for op in captured.graph.ops
                if held[op.name] == s
                for name in op.weights
                if canonical[name] in trainable
            }
        )
        for s in range(len(plan.stages.stages))
    ]


def find_version(setup: Setup, warmups: Sequence[int], stage: int, i: int) -> int:
    """The version that micro-batch i uses at a stage, as the table of policies says."""
    m = int(setup.policy_options.get("accumulate", 1))
    if setup.policy == "2bw":
        return max(i // int(m) - 1, 0)
    warmup = max(warmups) if setup.policy == "vertical-sync" else warmups[stage]
    return max(0, i - warmup) // m


def run_plain(
    model: nn.Module, weights: Sequence[Mapping[str, torch.Tensor]], batch: Any
) -> torch.Tensor:
    """Every weight belongs to one stage."""
    merged = {name: tensor for each in weights for name, tensor in each.items()}
    made: torch.Tensor = torch.func.functional_call(model, merged, batch[:-1])
    return made


def run_tied(
    model: nn.Module, weights: Sequence[Mapping[str, torch.Tensor]], batch: Any
) -> torch.Tensor:
    """The model `tied`, whose stages hold the embedding and the scale twice."""
    first, second, last = weights
    x = first["embed.weight"][batch[0]]
    for i, held in enumerate((first, second)):
        x = x @ held[f"blocks.{i}.weight"].T + held[f"blocks.{i}.bias"]
        x = torch.tanh(x * held["scale"])
    return x @ last["embed.weight"].T


def train_stale(
    setup: Setup,
    *,
    names_by_stage: Sequence[Sequence[str]],
    warmups: Sequence[int],
    forward: Forward = run_plain,
    clip_norm: float | None = None,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
) -> Result:
    """Losses and weights of training with stale, stashed weights."""
    held = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _train(setup, names_by_stage, warmups, forward, clip_norm, schedule)
    finally:
        torch.set_default_dtype(held)


def _train(
    setup: Setup,
    names_by_stage: Sequence[Sequence[str]],
    warmups: Sequence[int],
    forward: Forward,
    clip_norm: float | None,
    schedule: Callable[[torch.optim.Optimizer], Any] | None,
) -> Result:
    model, case = build_model(setup), CASES[setup.case]
    parameters = dict(model.named_parameters())
    optimizer = make_optimizer(setup, list(parameters.values()))
    scheduler = schedule(optimizer) if schedule else None
    history = [{name: p.detach().clone() for name, p in parameters.items()}]
    assert isinstance(setup.micro_batch_size, int)
    period, i, losses = setup.policy_options.get("accumulate", 1), 0, []
    for batch in make_batches(setup):
        count = setup.batch_size // setup.micro_batch_size
        rows = len(batch[0])
        cuts = [m * rows // count for m in range(count + 1)]
        losses.append(0.0)
        for m in range(count):
            first = m // period * period
            covered = cuts[first + period] - cuts[first]
            part = tuple(tensor[cuts[m] : cuts[m + 1]] for tensor in batch)
            weights = [
                {
                    name: history[find_version(setup, warmups, s, i)][name].clone().requires_grad_()
                    for name in names
                }
                for s, names in enumerate(names_by_stage)
            ]
            size = cuts[m + 1] - cuts[m]
            if size:
                loss = case.loss(forward(model, weights, part), part)
                torch.autograd.backward(loss * size / covered)
                losses[-1] += loss.item() * size / rows
                for each in weights:
                    for name, tensor in each.items():
                        add_gradient(parameters[name], tensor.grad)
            i += 1
            if i % period == 0:
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(parameters.values(), clip_norm)
                found = [p.grad for p in parameters.values() if p.grad is not None]
                if all(bool(torch.isfinite(each).all()) for each in found):
                    optimizer.step()
                optimizer.zero_grad()
                if scheduler is not None:
                    scheduler.step()
                history.append({name: p.detach().clone() for name, p in parameters.items()})
    return Result(losses, history[-1])


def add_gradient(parameter: nn.Parameter, gradient: torch.Tensor | None) -> None:
    """Accumulate."""
    if gradient is not None:
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
