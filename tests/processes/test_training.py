"""Training under a plan gives what training in one process gives."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.processes.crew import Crew
from tests.processes.training import (
    Result,
    Setup,
    train_dtypes,
    train_pipeline,
    train_whole,
)

TOLERANCE = 1e-10
TOLERANCES = {torch.float64: TOLERANCE, torch.float32: 1e-5}


def assert_equal_training(crew: Crew, setup: Setup, *, num_parts: int = 1) -> None:
    """Losses on every rank, and the weights of every rank, are those of the whole model."""
    clip_norm = setup.pipeline.get("clip_norm")
    wanted = train_whole(setup, clip_norm=clip_norm, num_parts=num_parts)
    results: list[Result] = crew.run(setup.num_ranks, train_pipeline, setup)
    assert_equal_results(results, wanted, TOLERANCE)


def assert_equal_in_dtypes(crew: Crew, setup: Setup) -> None:
    """The same in double and in single precision."""
    results: list[list[Result]] = crew.run(setup.num_ranks, train_dtypes, setup, list(TOLERANCES))
    for place, (dtype, tolerance) in enumerate(TOLERANCES.items()):
        wanted = train_whole(setup, dtype=dtype)
        assert_equal_results([each[place] for each in results], wanted, tolerance)


def assert_equal_results(results: list[Result], wanted: Result, tolerance: float) -> None:
    """What the ranks found is what one process found, and nothing is missing."""
    for result in results:
        assert result.losses == pytest.approx(wanted.losses, abs=tolerance, rel=tolerance)
        for name, tensor in result.weights.items():
            assert torch.isfinite(tensor).all(), name
            torch.testing.assert_close(
                tensor, wanted.weights[name], atol=tolerance, rtol=tolerance, msg=name
            )
    trained = {name for result in results for name in result.weights}
    assert trained >= {n for n in wanted.weights if n not in ("out.weight",)}


NUM_STEPS = 10
ONE_EACH = [(0,), (1,), (2,), (3,)]
SHAPES: dict[str, Setup] = {
    "chain": Setup(case="chain", devices=ONE_EACH),
    "towers": Setup(case="towers", devices=ONE_EACH[:3]),
    "unet": Setup(case="unet", devices=ONE_EACH),
    "mmt": Setup(case="mmt", devices=ONE_EACH[:3]),
    "tied": Setup(case="tied", devices=ONE_EACH[:3]),
    "frozen": Setup(case="frozen", devices=ONE_EACH[:3]),
    "replicated": Setup(case="towers", devices=[(0,), (1,), (2, 3)]),
}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "kfkb", "zero-bubble", "list"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_schedule_on_every_shape(crew: Crew, shape: str, schedule: str) -> None:
    """Losses and weights equal those of one process, for every order of the tasks."""
    setup = dataclasses.replace(SHAPES[shape], schedule=schedule, num_steps=NUM_STEPS)
    assert_equal_in_dtypes(crew, setup)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_complex_values_between_stages(crew: Crew, schedule: str) -> None:
    """They have gradients, and a conjugation that torch put off travels with them."""
    setup = Setup(case="spectral", devices=ONE_EACH[:3], schedule=schedule)
    assert_equal_in_dtypes(crew, setup)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_stage_that_hands_on_its_input(crew: Crew, schedule: str) -> None:
    """Its output is a leaf of autograd's, which has no node: backwards failed at it."""
    setup = Setup(case="hands-on", devices=ONE_EACH[:3], schedule=schedule)
    assert_equal_in_dtypes(crew, setup)


INTERLEAVED: dict[str, Setup] = {
    "chain": Setup(case="chain", devices=[(0,), (1,), (0,), (1,)]),
    "towers": Setup(case="towers", devices=[(0,), (1,), (0,)]),
    "unet": Setup(case="unet", devices=[(0,), (1,), (1,), (0,)]),
    "mmt": Setup(case="mmt", devices=[(0,), (1,), (1,)]),
    "replicated": Setup(case="towers", devices=[(0, 1), (2, 3), (0, 1)]),
}


@pytest.mark.parametrize("shape", INTERLEAVED)
def test_interleaved_on_every_shape(crew: Crew, shape: str) -> None:
    """The schedule that needs several stages on a device."""
    setup = dataclasses.replace(INTERLEAVED[shape], schedule="interleaved", num_steps=NUM_STEPS)
    assert_equal_in_dtypes(crew, setup)


@pytest.mark.parametrize("schedule", ["zero-bubble", "list"])
@pytest.mark.parametrize(
    ("case", "devices"),
    [
        ("chain", [(0,), (1,), (0,), (1,)]),
        ("chain", [(0, 1), (2, 3), (0, 1), (2, 3)]),
        ("unet", [(0,), (1,), (1,), (0,)]),
        ("tied", [(0,), (1,), (0,)]),
        ("mmt", [(0, 1), (2,), (0, 1)]),
    ],
)
def test_several_stages_on_a_device_in_turn(
    crew: Crew, case: str, devices: list[tuple[int, ...]], schedule: str
) -> None:
    """Schedules that interleave the stages of a device."""
    assert_equal_training(crew, Setup(case=case, devices=devices, schedule=schedule))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "split"])
@pytest.mark.parametrize("devices", [[(0, 1), (2, 3)], [(0,), (1, 2, 3)], [(0, 1, 2), (3,)]])
def test_replicas(crew: Crew, devices: list[tuple[int, ...]], schedule: str) -> None:
    """Stages may have several devices, more or fewer than their neighbours."""
    setup = Setup(
        case="chain",
        devices=devices,
        schedule=schedule,
        batch_size=12,
        micro_batch_size=6,
        stage_by_module={f"blocks.{i}": i // 2 for i in range(4)},
    )
    assert_equal_training(crew, setup)


@pytest.mark.parametrize(
    "devices",
    [
        [(0,), (1,), (0,), (1,)],
        [(0, 1), (0, 1), (0, 1), (0, 1)],
        [(0, 1), (2, 3), (0, 1), (2, 3)],
        [(0,), (0,), (1, 2), (0,)],
    ],
)
def test_several_stages_on_a_device(crew: Crew, devices: list[tuple[int, ...]]) -> None:
    """Stages that share their devices hand values over without a message."""
    assert_equal_training(crew, Setup(case="chain", devices=devices, schedule="gpipe"))


@pytest.mark.parametrize(
    ("case", "devices"),
    [
        ("towers", [(0,), (1,), (2, 3)]),
        ("unet", [(0, 1), (2,), (2,), (3,)]),
        ("tied", [(0,), (1,), (2, 3)]),
        ("tied", [(0, 1), (2,), (0, 1)]),
        ("mmt", [(0, 1), (2,), (3,)]),
    ],
)
def test_graphs_with_replicas(crew: Crew, case: str, devices: list[tuple[int, ...]]) -> None:
    """Joins, skips and tied weights with unequal numbers of devices at both ends."""
    assert_equal_training(crew, Setup(case=case, devices=devices, schedule="gpipe"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("sizes", [(2, 4, 4, 8), (8, 4, 2, 2), (2, 8, 2, 4)])
def test_unequal_micro_batches(crew: Crew, sizes: tuple[int, ...], schedule: str) -> None:
    """Every stage may have micro-batches of its own size."""
    devices = [(0,), (1,), (2,), (3,)]
    assert_equal_training(
        crew, Setup(case="chain", devices=devices, schedule=schedule, micro_batch_size=sizes)
    )


@pytest.mark.parametrize("devices", [[(0,), (1,), (2,), (3,)], [(0, 1), (2,), (0, 1), (2,)]])
def test_batches_of_any_size(crew: Crew, devices: list[tuple[int, ...]]) -> None:
    """Batches that the micro-batch count does not divide, or that have fewer samples than it."""
    setup = Setup(
        case="chain",
        devices=devices,
        schedule="gpipe",
        batch_size=8,
        rows_by_step=[8, 7, 3, 9, 1, 16],
    )
    assert_equal_training(crew, setup)


def test_fewer_micro_batches_than_stages(crew: Crew) -> None:
    """Two micro-batches on four stages, and one."""
    for size in (4, 8):
        setup = Setup(case="chain", devices=[(0,), (1,), (2,), (3,)], micro_batch_size=size)
        assert_equal_training(crew, setup)


@pytest.mark.parametrize("schedule", ["1f1b", "split"])
def test_recomputation(crew: Crew, schedule: str) -> None:
    """Stages that keep their inputs only give the same result."""
    setup = Setup(
        case="unet", devices=[(0,), (1,), (2,), (3,)], schedule=schedule, recompute=(0, 2, 3)
    )
    assert_equal_training(crew, setup)


@pytest.mark.parametrize("case", ["tied", "towers"])
def test_clipping_by_the_global_norm(crew: Crew, case: str) -> None:
    """The norm is that of all stages, with replicas and tied weights counted once."""
    setup = Setup(
        case=case,
        devices=[(0,), (1,), (2, 3)],
        schedule="1f1b",
        pipeline={"clip_norm": 0.1},
        optimizer="adamw",
    )
    assert_equal_training(crew, setup)


@pytest.mark.parametrize(
    "devices", [[(0,), (1,), (2,)], [(0, 1), (2,), (3,)], [(0,), (1, 2), (3,)]]
)
def test_values_without_a_batch(crew: Crew, devices: list[tuple[int, ...]]) -> None:
    """A value made of weights goes whole to every reader; all its gradients come back once."""
    assert_equal_training(crew, Setup(case="biased", devices=devices))


def test_other_sequence_lengths(crew: Crew) -> None:
    """A batch of another length is trained on as if the model had been captured for it."""
    setup = Setup(case="tied", devices=[(0,), (1,), (2,)], lengths_by_step=[3, 5, 3, 2])
    assert_equal_training(crew, setup)


@pytest.mark.parametrize("recompute", [(), (0, 1)])
def test_running_statistics(crew: Crew, recompute: tuple[int, ...]) -> None:
    """Batch norm sees micro-batches; recomputation updates its statistics once."""
    setup = Setup(case="normed", devices=[(0,), (1,)], recompute=recompute)
    assert_equal_training(crew, setup, num_parts=4)


def test_dropout_does_not_depend_on_the_order_of_tasks(crew: Crew) -> None:
    """Schedules, recomputation and devices do not change what is drawn; the seed does."""
    setups = [
        Setup(case="noisy", devices=[(0,), (1,)], schedule="gpipe"),
        Setup(case="noisy", devices=[(0,), (1,)], schedule="split", recompute=(0, 1)),
        Setup(case="noisy", devices=[(0,), (0,)], schedule="gpipe"),
        Setup(case="noisy", devices=[(0,), (1,)], pipeline={"seed": 1}),
    ]
    losses = [crew.run(setup.num_ranks, train_pipeline, setup)[0].losses for setup in setups]
    assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)
    assert losses[0] == pytest.approx(losses[2], abs=TOLERANCE)
    assert losses[0] != pytest.approx(losses[3], abs=1e-3)
