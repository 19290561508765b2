"""Replicas that share the state of their stage train as one process does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from graphplan.nouns.stages import ZeroLevel
from tests.processes.crew import Crew
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
