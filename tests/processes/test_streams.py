"""Streams of batches under stashed weights equal stale training in one process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from graphplan.nouns.plan import Plan
from graphplan.schedule.steady import order_steady
from graphplan.staleness.delays import count_needed, measure_delays
from graphplan_runtime import Pipeline
from tests.processes.crew import Crew
from tests.processes.stale import Forward, list_names, run_plain, run_tied, train_stale
from tests.processes.training import (
    Result,
    Setup,
    capture_case,
    make_batches,
    make_pipeline,
    plan_case,
    read_weights,
)

TOLERANCE = 1e-10


@dataclasses.dataclass(frozen=True)
class Streamed:
    """What a rank tells of a stream."""

    result: Result
    num_updates: dict[int, int]
    most_stale: dict[int, int]
    most_versions: dict[int, int]


def stream_batches(setup: Setup) -> Streamed:
    """Train on a stream of batches, then drain."""
    pipeline = make_pipeline(setup)
    losses = list(pipeline.stream(make_batches(setup)))
    return describe(pipeline, losses)


def describe(pipeline: Pipeline, losses: list[float]) -> Streamed:
    """The account of a stream that has ended."""
    versions = pipeline.versions.items()
    return Streamed(
        Result(losses, read_weights(pipeline)),
        {s: each.num_updates for s, each in versions},
        {s: each.most_stale for s, each in versions},
        {s: each.most_versions for s, each in versions},
    )


def halve_rate(optimizer: torch.optim.Optimizer) -> Any:
    """A schedule that counts updates."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


CHAIN = Setup(case="chain", devices=[(0,), (1,), (2,), (3,)], num_steps=5)
SETUPS: dict[str, tuple[Setup, Forward]] = {
    "chain": (CHAIN, run_plain),
    "accumulated": (dataclasses.replace(CHAIN, policy_options={"accumulate": 2}), run_plain),
    "towers": (Setup(case="towers", devices=[(0,), (1,), (2,)], num_steps=4), run_plain),
    "skips": (Setup(case="unet", devices=[(0,), (1,), (2,), (3,)], num_steps=4), run_plain),
    "replicas": (Setup(case="towers", devices=[(0,), (1,), (2, 3)], num_steps=4), run_plain),
    "tied": (Setup(case="tied", devices=[(0,), (1,), (2,)], num_steps=4), run_tied),
    "adamw": (dataclasses.replace(CHAIN, optimizer="adamw"), run_plain),
    "small batches": (dataclasses.replace(CHAIN, batch_size=2, num_steps=12), run_plain),
    "uneven rows": (dataclasses.replace(CHAIN, rows_by_step=[8, 7, 9, 4, 8]), run_plain),
    "clipped": (dataclasses.replace(CHAIN, pipeline={"clip_norm": 0.05}), run_plain),
    "clipped, tied": (
        Setup(
            case="tied",
            devices=[(0,), (1,), (2,)],
            num_steps=4,
            optimizer="adamw",
            pipeline={"clip_norm": 0.05},
        ),
        run_tied,
    ),
    "learning rate": (dataclasses.replace(CHAIN, pipeline={"scheduler": halve_rate}), run_plain),
    "recomputed": (dataclasses.replace(CHAIN, recompute=(0, 2)), run_plain),
}


def staleness_on_paper(plan: Plan, stage: int) -> int:
    """What `graphplan staleness` says of a stage: of the steady order, without devices."""
    size = plan.prices.stages[0].micro_batch_size
    long = msgspec.structs.replace(plan.prices, batch_size=size * count_needed(plan.policy))
    delays = measure_delays(long, order_steady(long, plan.policy.warmups), plan.policy)
    return next(each.staleness for each in delays.stages if each.stage == stage)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "stash") for name in SETUPS),
        *((name, "2bw") for name in ("chain", "skips", "tied", "clipped", "uneven rows")),
        *((name, "vertical-sync") for name in ("chain", "towers", "small batches")),
    ],
)
def test_stashed_weights(crew: Crew, name: str, policy: Any) -> None:
    """Losses and weights are those of one process that keeps all old versions."""
    setup, forward = SETUPS[name]
    captured = capture_case(setup.case)
    heights = plan_case(setup, captured).prices.heights
    options = dict(setup.policy_options)
    if policy == "2bw":
        options["accumulate"] = max(4, options.get("accumulate", 1))
        setup = dataclasses.replace(setup, batch_size=8)
    setup = dataclasses.replace(setup, policy=policy, policy_options=options)
    plan = plan_case(setup, captured)
    wanted = train_stale(
        setup,
        names_by_stage=list_names(captured, plan),
        warmups=heights,
        forward=forward,
        clip_norm=setup.pipeline.get("clip_norm"),
        schedule=setup.pipeline.get("scheduler"),
    )
    found: list[Streamed] = crew.run(setup.num_ranks, stream_batches, setup)
    total = len(wanted.losses) * plan.prices.num_micro_batches(0) // options.get("accumulate", 1)
    for each in found:
        assert each.result.losses == pytest.approx(wanted.losses, abs=TOLERANCE)
        for weight, tensor in each.result.weights.items():
            torch.testing.assert_close(
                tensor, wanted.weights[weight], atol=TOLERANCE, rtol=TOLERANCE, msg=weight
            )
        for s, count in each.num_updates.items():
            assert count == total
            assert each.most_stale[s] == staleness_on_paper(plan, s)
            assert each.most_versions[s] <= plan.policy.num_versions(s)


def save_midway(
    setup: Setup, folder: str, num_steps: int, dtype: torch.dtype = torch.float64
) -> tuple[list[float], Streamed]:
    """Save after some steps and go on to the end: the losses that had been given, and all."""
    pipeline = make_pipeline(setup, dtype=dtype)
    losses: list[float] = []
    given: list[float] = []
    for number, batch in enumerate(make_batches(setup)):
        loss = pipeline.step(batch)
        losses += [loss] if number >= pipeline.lag else []
        if number == num_steps - 1:
            given = list(losses)
            pipeline.save(folder)
    return given, describe(pipeline, losses + pipeline.drain())


def resume_midway(setup: Setup, folder: str, dtype: torch.dtype = torch.float64) -> Streamed:
    """Load into a pipeline with other weights, and train to the end."""
    pipeline = make_pipeline(setup, dtype=dtype)
    with torch.no_grad():
        for weight in pipeline.weights.values():
            weight.zero_()
    done = pipeline.load(folder)
    losses = [pipeline.step(batch) for batch in make_batches(setup)[done:]]
    return describe(pipeline, losses + pipeline.drain())


RESUMED: dict[str, Setup] = {
    "chain": dataclasses.replace(CHAIN, num_steps=6, pipeline={"scheduler": halve_rate}),
    "accumulated": dataclasses.replace(CHAIN, num_steps=6, policy_options={"accumulate": 4}),
    "dropout": Setup(case="noisy", devices=[(0,), (1,)], num_steps=6, optimizer="adamw"),
    "recomputed": Setup(case="noisy", devices=[(0,), (1,)], num_steps=6, recompute=(0,)),
    "small batches": dataclasses.replace(CHAIN, num_steps=9, batch_size=2),
    "tied": Setup(
        case="tied",
        devices=[(0,), (1,), (2,)],
        num_steps=6,
        optimizer="adamw",
        pipeline={"clip_norm": 0.05},
    ),
    "clipped": dataclasses.replace(CHAIN, num_steps=6, pipeline={"clip_norm": 0.05}),
    "shared": Setup(case="chain", devices=[(0,), (1,), (0,), (1,)], batch_size=32, num_steps=6),
    "shared, clipped": Setup(
        case="chain",
        devices=[(0,), (1,), (0,), (1,)],
        batch_size=32,
        num_steps=6,
        pipeline={"clip_norm": 0.05, "scheduler": halve_rate},
    ),
    "lengths": Setup(
        case="tied",
        devices=[(0,), (1,), (2,)],
        num_steps=6,
        lengths_by_step=[4, 4, 3, 4, 3, 3],
    ),
}
STREAMING: list[Any] = [
    "naive", "stash", "vertical-sync", "2bw", "predict", "spectrain1", "spectrain2"
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *(("chain", policy) for policy in STREAMING),
        ("accumulated", "predict"),
        ("accumulated", "vertical-sync"),
        ("dropout", "naive"),
        ("dropout", "stash"),
        ("recomputed", "predict"),
        ("small batches", "spectrain1"),
        ("small batches", "stash"),
        ("tied", "2bw"),
        ("tied", "predict"),
        ("clipped", "stash"),
        ("clipped", "spectrain2"),
        ("clipped", "2bw"),
        ("shared", "stash"),
        ("shared", "predict"),
        ("shared, clipped", "stash"),
        ("shared, clipped", "naive"),
        ("shared, clipped", "2bw"),
        ("lengths", "stash"),
        ("lengths", "predict"),
    ],
)
def test_resume_in_mid_stream(crew: Crew, tmp_path: Path, name: str, policy: Any) -> None:
    """A resumed run goes on to the last bit as the one that never ended, and as one not saved."""
    options = dict(RESUMED[name].policy_options)
    if policy == "2bw":
        options["accumulate"] = 4
    setup = dataclasses.replace(RESUMED[name], policy=policy, policy_options=options)
    if policy == "2bw" and not name.startswith("shared"):
        setup = dataclasses.replace(setup, batch_size=8, num_steps=6)
    whole: list[Streamed] = crew.run(setup.num_ranks, stream_batches, setup)
    saved = crew.run(setup.num_ranks, save_midway, setup, str(tmp_path), 4)
    rest: list[Streamed] = crew.run(setup.num_ranks, resume_midway, setup, str(tmp_path))
    for one, (given, two), three in zip(whole, saved, rest, strict=True):
        assert one.result.losses == two.result.losses == given + three.result.losses
        assert one.num_updates == three.num_updates
        for weight, tensor in one.result.weights.items():
            assert torch.equal(tensor, two.result.weights[weight]), weight
            assert torch.equal(tensor, three.result.weights[weight]), weight
