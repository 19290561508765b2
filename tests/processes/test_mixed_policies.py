"""Autocast under policies whose backward uses other weights than its forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.processes.crew import Crew
from tests.processes.test_streams import Streamed, describe, resume_midway, save_midway
from tests.processes.training import (
    Setup,
    build_model,
    make_batches,
    make_optimizer,
    make_pipeline,
)

HALF = torch.bfloat16
FORGETTING: list[Any] = ["naive", "predict", "spectrain1"]
MIXED = Setup(
    case="chain",
    devices=[(0,), (1,), (2,), (3,)],
    num_steps=6,
    training={"precision": "bfloat16", "mixed": True},
)
WARMUPS = (3, 2, 1, 0)
Weights = tuple[torch.Tensor, torch.Tensor]


def stream_mixed(setup: Setup) -> Streamed:
    """Train under autocast, then drain."""
    pipeline = make_pipeline(setup, dtype=torch.float32)
    return describe(pipeline, list(pipeline.stream(make_batches(setup))))


class Layer(torch.autograd.Function):
    """A linear layer in 16 bits, whose backward uses a weight of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        later: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, later)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, later = ctx.saved_tensors
        return gradient @ later, gradient.T @ x, gradient.sum(0), None


def train_oracle(setup: Setup, *, casts_of_forward: bool = False) -> dict[str, torch.Tensor]:
    """The four layers of `chain` with explicit casts, in one process, in plain lines."""
    model = build_model(setup)
    layers = [block[0] for block in model.blocks]  # type: ignore[union-attr]
    optimizer = make_optimizer(setup, list(model.parameters()))
    ahead: list[list[list[Weights]]] = [[[pair(layer, optimizer, 0)] * 8 for layer in layers]]
    i = 0
    for x, target in make_batches(setup):
        for part, wanted in zip(x.chunk(4), target.chunk(4), strict=True):
            value, leaves = part, []
            for s, w in enumerate(WARMUPS):
                seen = max(0, i - w)
                extra = (max(WARMUPS) - w) // 2 if setup.policy == "spectrain1" else 0
                far = 0 if setup.policy == "naive" else i - seen + extra
                before, after = ahead[seen][s][far], ahead[i][s][extra]
                own = [each.clone().requires_grad_() for each in before]
                later = (before if casts_of_forward else after)[0].to(HALF)
                leaves.append(own)
                given = (value.to(HALF), own[0].to(HALF), own[1].to(HALF), later)
                value = torch.tanh(Layer.apply(*given))  # type: ignore[no-untyped-call]
            torch.autograd.backward(functional.mse_loss(value.float(), wanted))
            for layer, own in zip(layers, leaves, strict=True):
                layer.weight.grad, layer.bias.grad = own[0].grad, own[1].grad
            optimizer.step()
            i += 1
            ahead.append([[pair(layer, optimizer, k) for k in range(8)] for layer in layers])
    return {n: p.detach() for n, p in model.named_parameters()}


def pair(layer: Any, optimizer: torch.optim.Optimizer, distance: int) -> Weights:
    """Weight and bias, some momentum buffers ahead."""
    found = []
    for parameter in (layer.weight, layer.bias):
        moved = optimizer.state.get(parameter, {}).get("momentum_buffer")
        step = 0 if moved is None else optimizer.param_groups[0]["lr"] * distance * moved
        found.append((parameter - step).detach().clone())
    return found[0], found[1]


def measure_distance(found: Sequence[Streamed], wanted: dict[str, torch.Tensor]) -> float:
    """The largest difference of a weight."""
    pairs = [(each.result.weights[n], wanted[n]) for each in found for n in each.result.weights]
    return max(float((one - two).abs().max()) for one, two in pairs)


@pytest.mark.parametrize("policy", FORGETTING)
def test_casts_are_those_of_the_backward(crew: Crew, policy: Any) -> None:
    """Equal to explicit casts of the weights that are due; casts of F's weights would differ."""
    setup = dataclasses.replace(MIXED, policy=policy)
    found: list[Streamed] = crew.run(4, stream_mixed, setup)
    assert measure_distance(found, train_oracle(setup)) < 1e-6
    assert measure_distance(found, train_oracle(setup, casts_of_forward=True)) > 1e-4


@pytest.mark.parametrize(
    ("policy", "precision"),
    [*((policy, "bfloat16") for policy in FORGETTING), ("2bw", "float16"), ("predict", "float16")],
)
def test_autocast_resumes_in_mid_stream(
    crew: Crew, tmp_path: Path, policy: Any, precision: str
) -> None:
    """To the last bit, with what autograd had saved, and with the loss scale of float16."""
    setup = dataclasses.replace(
        MIXED,
        policy=policy,
        policy_options={"accumulate": 4 if policy == "2bw" else 1},
        training={"precision": precision, "mixed": True},
    )
    saved = crew.run(4, save_midway, setup, str(tmp_path), 4, torch.float32)
    rest: list[Streamed] = crew.run(4, resume_midway, setup, str(tmp_path), torch.float32)
    whole: list[Streamed] = crew.run(4, stream_mixed, setup)
    for (_, one), two, three in zip(saved, rest, whole, strict=True):
        for name, tensor in three.result.weights.items():
            assert torch.equal(tensor, one.result.weights[name]), name
            assert torch.equal(tensor, two.result.weights[name]), name
