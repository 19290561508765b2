"""A run that is saved and resumed goes on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch

from graphplan_runtime.checkpoints.checkpoint import (
    Manifest,
    find_checkpoint,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from tests.processes.crew import Crew
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


def save_for_ever(folder: Path) -> None:
    """Write checkpoints whose tensors all hold the number of the step."""
    step = 0
    while True:
        step += 1
        tensors = {f"weight{i}": torch.full((20_000,), step) for i in range(4)}
        manifest = Manifest(model="m", step=step, seed=0)
        write_checkpoint(folder, manifest, tensors, (), rank=0, num_ranks=1)


def test_a_kill_while_saving_loses_nothing(tmp_path: Path) -> None:
    """Whenever the process dies, the last whole checkpoint is found and is whole."""
    context = multiprocessing.get_context("fork")
    draw = random.Random(0)
    last = 0
    for _ in range(25):
        process = context.Process(target=save_for_ever, args=(tmp_path,), daemon=True)
        process.start()
        time.sleep(0.02 + draw.random() * 0.1)
        process.kill()
        process.join()
        found = find_checkpoint(tmp_path)
        if found is None:
            assert last == 0
            continue
        manifest = read_manifest(found)
        tensors = read_checkpoint(found, manifest, {f"weight{i}" for i in range(4)})
        assert len(tensors) == 4
        assert all(bool((tensor == manifest.step).all()) for tensor in tensors.values())
        last = manifest.step
    assert last > 0
