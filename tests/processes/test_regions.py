"""A stage that recomputes some of its modules trains as one that keeps everything."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from graphplan.errors import InvalidOption
from graphplan.frontend import trace_module
from graphplan_runtime import Pipeline
from tests.processes.crew import Crew
from tests.processes.live import LiveBytes
from tests.processes.models import floats, mean_square
from tests.processes.plans import plan_by_hand
from tests.processes.test_training import TOLERANCE, assert_equal_training
from tests.processes.training import Setup, make_pipeline, train_pipeline

HALVES = {f"blocks.{i}": i // 2 for i in range(4)}


@pytest.mark.parametrize(
    "options",
    [
        {"case": "chain", "again": ["blocks.0", "blocks.3"], "stage_by_module": HALVES},
        {"case": "mmt", "again": ["branches.0", "branches.1"], "devices": [(0,), (1,), (0,)]},
        {"case": "unet", "again": ["down2", "norm", "up2"], "devices": [(0,)] * 4},
        {"case": "tied", "again": ["blocks"], "devices": [(0,), (1,), (0,)]},
        {
            "case": "chain",
            "again": ["blocks.1", "blocks.2"],
            "stage_by_module": dict.fromkeys(HALVES, 0),
            "devices": [(0, 1)],
            "zero": [3],
            "optimizer": "adamw",
            "training": {"bucket_bytes": 8 * 40},
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
def test_some_modules(crew: Crew, options: dict[str, Any], schedule: str) -> None:
    """Skips and tied weights across regions; weights that are gathered; split backwards."""
    setup = Setup(**{"devices": [(0,), (1,)], "schedule": schedule, **options})
    assert_equal_training(crew, setup)


def test_random_numbers_are_drawn_again(crew: Crew) -> None:
    """Dropout drops the same in both runs of a region."""
    setup = Setup(case="noisy", devices=[(0,), (1,)])
    wanted = crew.run(2, train_pipeline, setup)[0].losses
    for schedule in ("1f1b", "split"):
        again = dataclasses.replace(setup, again=["blocks"], schedule=schedule)
        assert crew.run(2, train_pipeline, again)[0].losses == pytest.approx(wanted, abs=TOLERANCE)


def measure_peak(again: list[str]) -> int:
    """The most bytes that are alive in a step of wide activations."""
    torch.set_default_dtype(torch.float64)
    layers = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.GELU(), nn.Sigmoid()) for _ in range(8))
    )
    sample = floats((16,), (16,))
    captured = trace_module(layers, sample, loss=mean_square)
    plan = plan_by_hand(
        captured.graph,
        {op.name: 0 for op in captured.graph.ops},
        devices=[(0,)],
        batch_size=1000,
        micro_batch_size=1000,
        again=again,
    )
    with LiveBytes() as live:
        pipeline = Pipeline(plan, captured, optimizer=torch.optim.SGD)
        pipeline.step(sample(1000))
        live.peak = 0
        pipeline.step(sample(1000))
    return int(live.peak)


def test_memory_is_that_of_what_is_kept(crew: Crew) -> None:
    """A layer keeps the results of tanh and sigmoid; one that is recomputed only the latter, which
    the next one reads: of eight layers that are all kept, the other four are in memory at once."""
    value = 8 * 16 * 1000
    every, some = (crew.run(1, measure_peak, again)[0] for again in ([], ["0", "2", "4", "6"]))
    assert (every - some) / value == pytest.approx(4, abs=0.1)


def test_batches_in_flight_are_saved_op_by_op(crew: Crew) -> None:
    """So that asynchronous policies recompute whole stages only."""
    setup = Setup(case="chain", devices=[(0,), (1,)], stage_by_module=HALVES, again=["blocks.0"])
    refusal = crew.run(2, find_refusal, dataclasses.replace(setup, policy="stash"))[0]
    assert "recomputes" in refusal
    assert "stash" in refusal


def find_refusal(setup: Setup) -> str:
    """Why there is no pipeline."""
    with pytest.raises(InvalidOption) as caught:
        make_pipeline(setup)
    return str(caught.value)
