"""Models that nobody here wrote: planned by search, trained on four ranks as in one process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from graphplan.cost.hardware import find_cluster
from graphplan.frontend import Captured, ModelFile, load_model_file, trace_model_file
from graphplan.nouns.plan import Plan
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import search_plan
from graphplan_runtime import Pipeline
from graphplan_runtime.stages.initialize import list_weights
from tests.processes.crew import Crew
from tests.processes.training import Result, read_weights

OUTSIDE = Path(__file__).parent / "outside"
NUM_STEPS, NUM_RANKS, BATCH_SIZE, MICRO_BATCH_SIZE = 4, 4, 8, 4


@functools.lru_cache
def load_outside(name: str) -> tuple[ModelFile, Captured]:
    """A model file and its capture; ranks that are forked inherit both."""
    model_file = load_model_file(OUTSIDE / f"{name}.py")
    return model_file, trace_model_file(model_file)


def search_outside(name: str) -> Plan:
    """A plan in which every device has work."""
    options = SearchOptions(
        batch_size=BATCH_SIZE,
        micro_batch_sizes=(MICRO_BATCH_SIZE,),
        optimizer="momentum",
        objective="memory",  # So small a model is fastest on one device.
        effort=0.2,
        baselines=False,
    )
    return search_plan(load_outside(name)[1].graph, find_cluster("cpu", gpus=NUM_RANKS), options)


def build_seeded(model_file: ModelFile) -> torch.nn.Module:
    """The module, always with the same weights."""
    torch.manual_seed(1)
    return model_file.build().train()


def make_batches(model_file: ModelFile) -> list[dict[str, torch.Tensor]]:
    """One batch for each step, always the same ones."""
    torch.manual_seed(2)
    return [model_file.inputs(BATCH_SIZE) for _ in range(NUM_STEPS)]


def train_rank(name: str, plan: Plan) -> Result:
    """This rank's part of the training."""
    model_file, captured = load_outside(name)
    state = list_weights(build_seeded(model_file))
    pipeline = Pipeline(plan, captured, optimizer=model_file.optimizer, state=state)
    losses = [pipeline.step(batch) for batch in make_batches(model_file)]
    return Result(losses, read_weights(pipeline))


def train_eager(name: str, part_size: int) -> Result:
    """The module itself, on parts of the batch: CLIP's loss compares the samples of a part."""
    model_file, _ = load_outside(name)
    model = build_seeded(model_file)
    assert model_file.optimizer is not None
    optimizer = model_file.optimizer(list(model.parameters()))
    losses = []
    for batch in make_batches(model_file):
        losses.append(0.0)
        parts = {key: tensor.chunk(BATCH_SIZE // part_size) for key, tensor in batch.items()}
        for values in zip(*parts.values(), strict=True):
            loss = find_loss(model_file, model, dict(zip(parts, values, strict=True)))
            share = loss * part_size / BATCH_SIZE
            torch.autograd.backward(share)
            losses[-1] += share.item()
        optimizer.step()
        optimizer.zero_grad()
    return Result(losses, dict(model.named_parameters()))


def find_loss(
    model_file: ModelFile, model: torch.nn.Module, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """The loss of the model file, or the one that the model returns."""
    if model_file.loss is not None:
        given = {key: tensor for key, tensor in batch.items() if key != "noise"}
        found: torch.Tensor = model_file.loss(model(**given), batch)
        return found
    made: Any = model(**batch)
    loss: torch.Tensor = made if isinstance(made, torch.Tensor) else made.loss
    return loss


def count_loss_devices(name: str, plan: Plan) -> int:
    """Replicas of the stage that computes the loss."""
    loss = load_outside(name)[1].graph.loss
    return next(len(stage.devices) for stage in plan.stages.stages if loss in stage.ops)


@pytest.mark.parametrize("name", ["clip", "t5", "unet"])
def test_outside_models_train_as_one_process(name: str, tmp_path: Path) -> None:
    """Losses and parameters equal those of the eager module."""
    pytest.importorskip("diffusers" if name == "unet" else "transformers")
    plan = search_outside(name)
    assert all(plan.prices.stages_by_device), "a device has nothing to do"
    wanted = train_eager(name, MICRO_BATCH_SIZE // count_loss_devices(name, plan))
    crew = Crew(tmp_path, method="fork")
    try:
        results: list[Result] = crew.run(NUM_RANKS, train_rank, name, plan)
    finally:
        crew.dismiss()
    for result in results:
        assert result.losses == pytest.approx(wanted.losses, abs=1e-5)
        for key, tensor in result.weights.items():
            if key in wanted.weights:
                torch.testing.assert_close(tensor, wanted.weights[key], atol=1e-5, rtol=1e-5)
    trained = {key for result in results for key in result.weights}
    assert trained >= wanted.weights.keys()
