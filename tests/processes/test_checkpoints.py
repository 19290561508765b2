"""A run that is saved and resumed goes on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from tests.processes.crew import Crew
from tests.processes.killing import kill_while_saving
from tests.processes.training import (
    Result,
    Setup,
    make_batches,
    make_pipeline,
    read_weights,
    train_pipeline,
)


def train_and_save(setup: Setup, folder: str, num_steps: int) -> list[float]:
    """The losses of the first steps; then save."""
    pipeline = make_pipeline(setup)
    losses = [pipeline.step(batch) for batch in make_batches(setup)[:num_steps]]
    pipeline.save(folder)
    return losses


def resume_and_train(setup: Setup, folder: str) -> Result:
    """Load into a pipeline with other weights, and train to the end."""
    pipeline = make_pipeline(setup)
    with torch.no_grad():
        for weight in pipeline.weights.values():
            weight.zero_()
    done = pipeline.load(folder)
    losses = [pipeline.step(batch) for batch in make_batches(setup)[done:]]
    return Result(losses, read_weights(pipeline))


@pytest.mark.parametrize(
    "setup",
    [
        Setup(case="tied", devices=[(0,), (1,), (2,)], optimizer="adamw", num_steps=6),
        Setup(case="noisy", devices=[(0,), (1,)], schedule="split", num_steps=6),
        Setup(case="normed", devices=[(0,), (1, 2)], optimizer="adamw", num_steps=6),
    ],
    ids=["tied", "dropout", "buffers"],
)
def test_resume_is_exact(crew: Crew, tmp_path: Path, setup: Setup) -> None:
    """Losses and weights are equal to the last bit."""
    whole: list[Result] = crew.run(setup.num_ranks, train_pipeline, setup)
    first = crew.run(setup.num_ranks, train_and_save, setup, str(tmp_path), 3)
    rest: list[Result] = crew.run(setup.num_ranks, resume_and_train, setup, str(tmp_path))
    assert first[0] + rest[0].losses == whole[0].losses
    for one, two in zip(whole, rest, strict=True):
        assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


@pytest.mark.parametrize(
    "devices", [[(0,), (0,), (0,), (0,)], [(0,), (1,), (0,), (1,)], [(0, 1), (2,), (2,), (3,)]]
)
def test_resume_under_another_plan(
    crew: Crew, tmp_path: Path, devices: list[tuple[int, ...]]
) -> None:
    """Other stages, devices and ranks go on with the same losses."""
    setup = Setup(case="chain", devices=[(0,), (1,), (2,), (3,)], optimizer="adamw", num_steps=6)
    other = dataclasses.replace(setup, devices=devices, schedule="gpipe", micro_batch_size=4)
    wanted: list[Result] = crew.run(setup.num_ranks, train_pipeline, setup)
    crew.run(setup.num_ranks, train_and_save, setup, str(tmp_path), 3)
    found: list[Result] = crew.run(other.num_ranks, resume_and_train, other, str(tmp_path))
    assert found[0].losses == pytest.approx(wanted[0].losses[3:], abs=1e-10)


def test_a_kill_while_saving_loses_nothing(tmp_path: Path) -> None:
    """Whenever the process dies, the last whole checkpoint is found, and its lock is taken over."""
    tally = kill_while_saving(tmp_path / "saved", num_kills=25, rng=random.Random(0))
    assert tally.last_step > 0
    assert tally.torn > 0
    assert tally.taken_over > 0
