"""Replicas that share the state of their stage train as one process does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphplan.frontend import trace_module
from graphplan.nouns.stages import ZERO_LEVELS, ZeroLevel
from graphplan_runtime import Pipeline
from tests.processes.crew import Crew
from tests.processes.live import LiveBytes
from tests.processes.models import floats, mean_square
from tests.processes.plans import plan_by_hand
from tests.processes.test_checkpoints import resume_and_train, train_and_save
from tests.processes.test_training import assert_equal_training
from tests.processes.training import Result, Setup, train_whole

TWO_STAGES = {f"blocks.{i}": i // 2 for i in range(4)}
SMALL = {"bucket_bytes": 8 * 40}
"""Several buckets to a stage, one of them with weights of two layers."""


def make_setup(level: ZeroLevel, **options: Any) -> Setup:
    """Two stages with two replicas each, ten steps."""
    chosen: dict[str, Any] = {
        "case": "chain",
        "devices": [(0, 1), (2, 3)],
        "stage_by_module": TWO_STAGES,
        "num_steps": 10,
        "training": SMALL,
        **options,
    }
    return Setup(**{"zero": [level] * len(chosen["devices"]), **chosen})


@pytest.mark.parametrize(
    ("level", "options"),
    [
        (1, {"schedule": "split", "optimizer": "adamw", "pipeline": {"clip_norm": 0.1}}),
        (
            1,
            {
                "case": "tied",
                "schedule": "gpipe",
                "devices": [(0, 1), (2, 3), (0, 1)],
                "stage_by_module": None,
            },
        ),
        (1, {"optimizer": "adafactor"}),
        (2, {"optimizer": "adamw", "rows_by_step": [8, 7, 3, 1]}),
        (
            2,
            {
                "case": "mmt",
                "devices": [(0, 1), (2,), (3,)],
                "stage_by_module": None,
                "zero": [2, 0, 0],
            },
        ),
        (3, {"optimizer": "adamw", "rows_by_step": [8, 7, 3, 1], "recompute": (1,)}),
        (
            3,
            {
                "case": "unet",
                "devices": [(0, 1), (2, 3), (0, 1), (2, 3)],
                "schedule": "gpipe",
                "stage_by_module": None,
            },
        ),
        (3, {"schedule": "split", "optimizer": "adafactor", "pipeline": {"clip_norm": 0.1}}),
        (2, {"schedule": "gpipe", "optimizer": "adafactor", "pipeline": {"clip_norm": 0.1}}),
    ],
    ids=str,
)
def test_levels(crew: Crew, level: ZeroLevel, options: dict[str, Any]) -> None:
    """Clipping by the norm of all pieces, tied weights, updates of whole weights, idle replicas."""
    assert_equal_training(crew, make_setup(level, **options))


OTHERS: list[dict[str, Any]] = [
    {"zero": [0, 0]},
    {"zero": [2, 3]},
    {
        "zero": [1],
        "devices": [(0, 1, 2, 3)],
        "micro_batch_size": 4,
        "stage_by_module": dict.fromkeys(TWO_STAGES, 0),
    },
]


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_resume_across_levels(crew: Crew, tmp_path: Path, optimizer: str) -> None:
    """Checkpoints hold whole tensors: other levels, replicas and stages go on from them."""
    setup = make_setup(1, optimizer=optimizer, num_steps=6, zero=[1, 3])
    wanted = train_whole(setup)
    crew.run(4, train_and_save, setup, str(tmp_path), 3)
    for other in [setup, *(dataclasses.replace(setup, **each) for each in OTHERS)]:
        found: list[Result] = crew.run(other.num_ranks, resume_and_train, other, str(tmp_path))
        assert found[0].losses == pytest.approx(wanted.losses[3:], abs=1e-10)


# -- memory ----------------------------------------------------------------------------------------

WIDTH, NUM_LAYERS = 192, 10
LAYER_BYTES = 8 * (WIDTH * WIDTH + WIDTH)


def measure_peaks(levels: Sequence[ZeroLevel]) -> list[int]:
    """The most bytes of tensors that are alive at once in a step, by level."""
    torch.set_default_dtype(torch.float64)
    found = []
    for level in levels:
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
        sample = floats((WIDTH,), (WIDTH,))
        captured = trace_module(layers, sample, loss=mean_square)
        plan = plan_by_hand(
            captured.graph,
            {op.name: 0 for op in captured.graph.ops},
            devices=[(0, 1)],
            batch_size=8,
            micro_batch_size=4,
            zero=[level],
            training={"bucket_bytes": LAYER_BYTES},
        )
        with LiveBytes() as live:
            pipeline = Pipeline(plan, captured, optimizer=torch.optim.AdamW)
            live.adopt(pipeline.weights.values())
            pipeline.step(sample(8))
            live.peak = 0
            pipeline.step(sample(8))
        found.append(live.peak)
    return found


def test_memory_of_levels(crew: Crew) -> None:
    """Weights, gradients, two states of AdamW, and buckets, within a tenth.

    Beside what is kept there are at most two buckets of gradients, the gradients of a layer where
    autograd has made them, and under zero 3 two buckets of weights.
    """
    whole, half = NUM_LAYERS * LAYER_BYTES, NUM_LAYERS * LAYER_BYTES / 2
    wanted = [
        whole + whole + 2 * whole + LAYER_BYTES,
        whole + whole + 2 * half + LAYER_BYTES,
        whole + half + 2 * half + 3 * LAYER_BYTES,
        half + half + 2 * half + 5 * LAYER_BYTES,
    ]
    for peaks in crew.run(2, measure_peaks, ZERO_LEVELS):
        assert peaks == [pytest.approx(each, rel=0.1) for each in wanted]
