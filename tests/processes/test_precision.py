"""Reduced precision: autocast, weights cast as a whole, and loss scaling agreed by all ranks."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from graphplan.nouns.stages import ZeroLevel
from tests.processes.crew import Crew
from tests.processes.models import CASES
from tests.processes.training import (
    Result,
    Setup,
    build_model,
    make_batches,
    make_optimizer,
    make_pipeline,
)

CASE = "mmt"


def train_reduced(setup: Setup) -> Result:
    """Train in fp32 or less; the scale of the loss stands in place of the weights."""
    pipeline = make_pipeline(setup, dtype=torch.float32)
    losses = [pipeline.step(batch) for batch in make_batches(setup)]
    dtypes = {name: tensor.dtype for name, tensor in pipeline.weights.items()}
    assert len(set(dtypes.values())) == 1
    scale = torch.tensor(pipeline.updater.loss_scale.value)
    return Result(losses, {"scale": scale, "weight": next(iter(pipeline.weights.values()))})


def train_autocast(setup: Setup, dtype: torch.dtype) -> list[float]:
    """The eager model under autocast, on micro-batches."""
    model, case = build_model(setup), CASES[setup.case]
    optimizer = make_optimizer(setup, model.parameters())
    losses = []
    for batch in make_batches(setup):
        losses.append(0.0)
        for part in zip(*(tensor.chunk(4) for tensor in batch), strict=True):
            with torch.autocast("cpu", dtype=dtype):
                loss = case.loss(model(*part[:-1]), part) / 4
            torch.autograd.backward(loss)
            losses[-1] += loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("schedule", ["1f1b", "split"])
def test_bfloat16_autocast(crew: Crew, schedule: str) -> None:
    """Stages under autocast send what autocast makes, and train as the whole model does."""
    setup = Setup(
        case=CASE,
        devices=[(0,), (1,), (2,)],
        schedule=schedule,
        training={"precision": "bfloat16", "mixed": True},
    )
    results: list[Result] = crew.run(3, train_reduced, setup)
    wanted = train_autocast(setup, torch.bfloat16)
    assert results[0].losses == pytest.approx(wanted, rel=2e-3)
    assert results[0].weights["weight"].dtype == torch.float32


@pytest.mark.parametrize("level", [1, 3])
def test_bfloat16_autocast_with_shared_state(crew: Crew, level: ZeroLevel) -> None:
    """Pieces are masters in fp32; autocast casts what is gathered."""
    setup = Setup(
        case=CASE,
        devices=[(0, 1), (2,), (3,)],
        zero=[level, 0, 0],
        training={"precision": "bfloat16", "mixed": True},
    )
    results: list[Result] = crew.run(4, train_reduced, setup)
    assert results[0].losses == pytest.approx(train_autocast(setup, torch.bfloat16), rel=2e-3)


def test_bfloat16_weights(crew: Crew) -> None:
    """Without master weights the whole stage is cast."""
    setup = Setup(
        case="chain", devices=[(0,), (1,), (2,), (3,)], training={"precision": "bfloat16"}
    )
    results: list[Result] = crew.run(4, train_reduced, setup)
    assert results[0].weights["weight"].dtype == torch.bfloat16
    assert results[0].losses == results[3].losses
    assert results[0].losses[-1] < results[0].losses[0]


def test_float16_scales_the_loss(crew: Crew) -> None:
    """The scale is the same on all ranks; a step with an infinite gradient changes nothing."""
    setup = Setup(
        case="chain",
        devices=[(0,), (1,), (2, 3)],
        stage_by_module={"blocks.0": 0, "blocks.1": 1, "blocks.2": 1, "blocks.3": 2},
        training={"precision": "float16", "mixed": True},
        num_steps=8,
        rows_by_step=[8] * 8,
        pipeline={"clip_norm": 1.0},
    )
    results: list[Result] = crew.run(4, train_reduced, setup)
    assert len({float(result.weights["scale"]) for result in results}) == 1
    assert all(torch.isfinite(result.weights["weight"]).all() for result in results)
    assert results[0].losses == results[2].losses
    shared = dataclasses.replace(setup, zero=[0, 0, 2])
    again: list[Result] = crew.run(4, train_reduced, shared)
    assert again[0].losses == pytest.approx(results[0].losses, rel=2e-3)
    assert {float(r.weights["scale"]) for r in again} == {float(results[0].weights["scale"])}
