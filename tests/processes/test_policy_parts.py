"""Weight policies: memory, loss scaling, replicas with weights of their own, shared devices."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphplan.frontend import trace_module
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.training import STATES_PER_PARAMETER
from graphplan_runtime import Pipeline
from graphplan_runtime.updates.update import Optimizers
from tests.processes.crew import Crew
from tests.processes.models import CASES, floats, mean_square
from tests.processes.plans import assign_stages, plan_by_hand
from tests.processes.stale import Forward, list_names, run_plain, run_tied, train_stale
from tests.processes.test_streams import STREAMING, Streamed, stream_batches
from tests.processes.training import (
    Result,
    Setup,
    build_model,
    capture_case,
    make_batches,
    make_optimizer,
    make_pipeline,
    plan_case,
    read_weights,
    train_pipeline,
    train_whole,
)

TOLERANCE = 1e-10
WIDE = 1024
WEIGHT_BYTES = 8 * WIDE * WIDE
M_MMAP_THRESHOLD = -3
"""Of mallopt."""
OPTIMIZERS: dict[str, Optimizers] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.5),
    "nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=1e-4, momentum=0.5, nesterov=True
    ),
}
TOO_LARGE = 2.0**22
"""A loss scale at which gradients of 16 bits are infinite."""


# -- memory ----------------------------------------------------------------------------------------


def measure_versions(runs: list[tuple[Any, ...]]) -> list[float]:
    """Weight versions that a stage of one large weight really holds, by resident memory."""
    # Large blocks go back to the system at once, so that resident memory tells what is held.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(4)))
    captured = trace_module(model, floats((WIDE,), (WIDE,)), loss=mean_square)
    stage_by_op = assign_stages(captured.graph, {str(i): i for i in range(4)})
    measure_one(captured, stage_by_op, "naive")  # The first run also loads libraries.
    return [measure_one(captured, stage_by_op, *run) for run in runs]


def measure_one(
    captured: Any,
    stage_by_op: dict[str, int],
    policy: Any,
    optimizer: str = "momentum",
    direction: str = "optimizer",
) -> float:
    """The largest resident memory at a backward, in weights, less the optimizer's own states."""
    accumulate = 4 if policy == "2bw" else 1
    plan = plan_by_hand(
        captured.graph,
        stage_by_op,
        devices=[(0,), (1,), (2,), (3,)],
        batch_size=8,
        micro_batch_size=1,
        policy=policy,
        policy_options={"accumulate": accumulate, "direction": direction},
    )
    state = {name: tensor.detach().clone() for name, tensor in captured.weights().items()}
    gc.collect()
    before = read_resident()
    pipeline = Pipeline(
        plan,
        captured,
        optimizer=OPTIMIZERS[optimizer],
        state=state,
    )
    (versions,) = pipeline.versions.values()
    told, found = versions.check_stamp, []

    def check_stamp(micro_batch: int, stamp: int) -> None:
        if micro_batch % accumulate == 0 and versions.num_updates > 1:  # no gradient is held
            found.append(read_resident() - before)
        told(micro_batch, stamp)

    versions.check_stamp = check_stamp  # type: ignore[method-assign]
    for _ in range(4):
        pipeline.step(floats((WIDE,), (WIDE,))(8))
    pipeline.drain()
    return max(found) / WEIGHT_BYTES - STATES_PER_PARAMETER[optimizer]


def read_resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_is_as_promised(crew: Crew) -> None:
    """Two versions for 2bw and predict, w_s + 1 for stash, one for naive: measured, not counted."""
    policies = ["naive", "stash", "vertical-sync", "2bw", "predict", "spectrain2"]
    by_rank = crew.run(4, measure_versions, [(policy,) for policy in policies])
    for stage, found in enumerate(by_rank):
        w = 3 - stage
        wanted = [1, w + 1, 4, 2, 2 if w else 1, w + 2 if w else 1]
        assert found == pytest.approx(wanted, abs=0.4), stage


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_directions_take_as_much_memory_as_is_priced(crew: Crew) -> None:
    """One more buffer at stages that predict, where no state of the optimizer tells a direction."""
    runs: list[tuple[Any, ...]] = [
        (policy, *how)
        for policy in ("predict", "spectrain1", "spectrain2")
        for how in (("momentum", "displacement"), ("sgd", "optimizer"), ("nesterov", "optimizer"))
    ]
    by_rank = crew.run(4, measure_versions, runs)
    for stage, found in enumerate(by_rank):
        for run, figure in zip(runs, found, strict=True):
            name, optimizer, direction = run
            policy = WeightPolicy(name=name, warmups=(3, 2, 1, 0), direction=direction)
            versions = policy.num_versions(stage) if policy.predicts(stage) else 1
            wanted = versions + policy.num_directions(stage, optimizer)
            assert figure == pytest.approx(wanted, abs=0.4), (stage, run)


# -- precision -------------------------------------------------------------------------------------


def stream_scaled(setups: list[Setup]) -> list[tuple[list[float], float, bool, int]]:
    """Train in 16 bits: losses, the loss scale, whether all weights are finite, updates."""
    found = []
    for setup in setups:
        pipeline = make_pipeline(setup, dtype=torch.float32)
        pipeline.updater.loss_scale.value = TOO_LARGE
        losses = list(pipeline.stream(make_batches(setup)))
        finite = all(bool(torch.isfinite(each).all()) for each in pipeline.weights.values())
        updates = {each.num_updates for each in pipeline.versions.values()}
        found.append((losses, pipeline.updater.loss_scale.value, finite, updates.pop()))
    return found


@pytest.mark.parametrize("devices", [[(0,), (1,), (2,), (3,)], [(0,), (1,), (0,), (1,)]], ids=str)
def test_loss_scaling_under_every_policy(crew: Crew, devices: list[tuple[int, ...]]) -> None:
    """An infinite gradient at any stage skips the update of all; the scale is one for all ranks."""
    is_shared = len(set(devices)) < len(devices)
    setups = [
        Setup(
            case="chain",
            devices=devices,
            batch_size=32 if is_shared else 8,
            training={"precision": "float16", "mixed": mixed},
            num_steps=10,
            policy=policy,
            policy_options={"accumulate": 4 if policy == "2bw" else 1},
            pipeline={"clip_norm": 1.0},
        )
        for policy in STREAMING
        for mixed in ((True, False) if policy == "predict" else (True,))
    ]
    by_rank = crew.run(setups[0].num_ranks, stream_scaled, setups)
    for i, setup in enumerate(setups):
        found = [each[i] for each in by_rank]
        assert all(one[:2] == found[0][:2] for one in found), setup.policy
        losses, scale, _, updates = found[0]
        assert all(finite for _, _, finite, _ in found), setup.policy
        assert scale < TOO_LARGE, setup.policy
        plan = plan_case(setup, capture_case("chain", torch.float32))
        assert updates == 10 * setup.batch_size // 2 // plan.policy.accumulate
        assert len(losses) == 10
        assert losses[-1] != losses[0]


def stream_checked(setup: Setup) -> tuple[Result, float]:
    """Train with a loss scale in fp64; also the scale in the end."""
    pipeline = make_pipeline(setup)
    pipeline.updater.loss_scale.dynamic = True
    pipeline.updater.loss_scale.value = 1024.0
    losses = list(pipeline.stream(make_batches(setup)))
    return Result(losses, read_weights(pipeline)), pipeline.updater.loss_scale.value


@pytest.mark.parametrize("policy", ["stash", "vertical-sync", "2bw"])
@pytest.mark.parametrize("devices", [[(0,), (1,), (2,), (3,)], [(0,), (1,), (0,), (1,)]], ids=str)
def test_an_infinite_gradient_skips_one_update_of_all_stages(
    crew: Crew, policy: Any, devices: list[tuple[int, ...]]
) -> None:
    """Only stage 0 has infinite gradients: weights are as if all had skipped, the scale halves."""
    setup = Setup(
        case="chain",
        devices=devices,
        batch_size=32,
        num_steps=5,
        policy=policy,
        policy_options={"accumulate": 4} if policy == "2bw" else {},
        pipeline={"clip_norm": 0.5},
        infinite_steps=(1, 3),
    )
    captured = capture_case("chain")
    plan = plan_case(setup, captured)
    setup = dataclasses.replace(setup, policy_options={"accumulate": plan.policy.accumulate})
    names, warmups = list_names(captured, plan), plan.policy.warmups
    wanted = train_stale(setup, names_by_stage=names, warmups=warmups, clip_norm=0.5)
    for result, scale in crew.run(setup.num_ranks, stream_checked, setup):
        assert scale == 256.0
        assert result.losses == pytest.approx(wanted.losses, abs=TOLERANCE)
        for weight, tensor in result.weights.items():
            torch.testing.assert_close(
                tensor, wanted.weights[weight], atol=TOLERANCE, rtol=TOLERANCE
            )


# -- local -----------------------------------------------------------------------------------------


def train_replicas(setup: Setup, *, clip_norm: float | None) -> dict[str, torch.Tensor]:
    """LocalSGD in one process: every replica trains on its rows, weights are averaged."""
    held = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        num, case = len(setup.devices[0]), CASES[setup.case]
        models = [build_model(setup) for _ in range(num)]
        optimizers = [make_optimizer(setup, list(model.parameters())) for model in models]
        for step, batch in enumerate(make_batches(setup)):
            parts = [tensor.chunk(4) for tensor in batch]
            for replica, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                rows = [torch.cat([part.chunk(num)[replica] for part in each]) for each in parts]
                torch.autograd.backward(case.loss(model(*rows[:-1]), rows))
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                optimizer.step()
                optimizer.zero_grad()
            if (step + 1) % setup.policy_options["local_steps"] == 0:
                average(models)
        return models[0].state_dict()
    finally:
        torch.set_default_dtype(held)


def average(models: list[nn.Module]) -> None:
    """Give all models the mean of their weights."""
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([each.detach() for each in same]).mean(dim=0)
            for each in same:
                each.copy_(mean)


@pytest.mark.parametrize("case", ["towers", "tied"])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_local_steps(crew: Crew, case: str, clip_norm: float | None) -> None:
    """Replicas train on their own rows and are averaged after every third batch."""
    setup = Setup(
        case=case,
        devices=[(0, 3), (1, 4), (2, 5)] if case == "towers" else [(0, 2), (1, 3), (0, 2)],
        schedule="gpipe",
        num_steps=6,
        policy="local",
        policy_options={"local_steps": 3},
        pipeline={"clip_norm": clip_norm},
    )
    wanted = train_replicas(setup, clip_norm=clip_norm)
    for result in crew.run(setup.num_ranks, train_pipeline, setup):
        for name, tensor in result.weights.items():
            torch.testing.assert_close(tensor, wanted[name], atol=TOLERANCE, rtol=TOLERANCE)


def test_one_local_step_of_plain_descent_is_flush(crew: Crew) -> None:
    """The mean of steps is the step of the mean."""
    setup = Setup(
        case="towers", devices=[(0, 3), (1, 4), (2, 5)], policy="local", optimizer="plain"
    )
    wanted = train_whole(dataclasses.replace(setup, policy="flush"))
    for result in crew.run(6, train_pipeline, setup):
        for name, tensor in result.weights.items():
            torch.testing.assert_close(tensor, wanted.weights[name], atol=1e-12, rtol=1e-12)


def resume_local(setup: Setup, folder: str) -> tuple[Result, Result]:
    """Train to the end, saving in the middle of local steps; then from there once more."""
    pipeline, batches = make_pipeline(setup), make_batches(setup)
    for number, batch in enumerate(batches):
        if number == 4:
            pipeline.save(folder)
        pipeline.step(batch)
    again = make_pipeline(setup)
    done = again.load(folder)
    losses = [again.step(batch) for batch in batches[done:]]
    return Result([], read_weights(pipeline)), Result(losses, read_weights(again))


def test_local_resumes_between_averagings(crew: Crew, tmp_path: Path) -> None:
    """Replicas that differ are saved as they are."""
    setup = Setup(
        case="towers",
        devices=[(0, 3), (1, 4), (2, 5)],
        num_steps=7,
        policy="local",
        policy_options={"local_steps": 3},
    )
    for whole, rest in crew.run(6, resume_local, setup, str(tmp_path)):
        assert all(torch.equal(whole.weights[name], rest.weights[name]) for name in whole.weights)


# -- several stages on a device --------------------------------------------------------------------


SHARED: dict[str, tuple[Setup, Forward]] = {
    "plain": (Setup(case="chain", devices=[(0,), (1,), (0,), (1,)]), run_plain),
    "clipped": (
        Setup(case="chain", devices=[(0,), (1,), (0,), (1,)], pipeline={"clip_norm": 0.05}),
        run_plain,
    ),
    "clipped towers": (
        Setup(case="towers", devices=[(0,), (0,), (1,)], pipeline={"clip_norm": 0.05}),
        run_plain,
    ),
    "tied": (Setup(case="tied", devices=[(0,), (1,), (0,)], optimizer="adamw"), run_tied),
    "tied neighbours": (Setup(case="tied", devices=[(0,), (0,), (1,)]), run_tied),
    "clipped, tied": (
        Setup(
            case="tied",
            devices=[(0,), (1,), (0,)],
            optimizer="adamw",
            pipeline={"clip_norm": 0.05},
        ),
        run_tied,
    ),
}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "stash") for name in SHARED),
        *((name, "2bw") for name in SHARED),
        ("clipped", "vertical-sync"),
        ("clipped, tied", "vertical-sync"),
    ],
)
def test_streams_with_stages_that_share_devices(crew: Crew, name: str, policy: Any) -> None:
    """The steady order of two stages on a device, with the warm-ups that it has.

    Where their updates wait for each other the order is another one, the versions are the same.
    """
    setup, forward = SHARED[name]
    setup = dataclasses.replace(setup, policy=policy, batch_size=32, num_steps=3)
    captured = capture_case(setup.case)
    plan = plan_case(setup, captured)
    setup = dataclasses.replace(setup, policy_options={"accumulate": plan.policy.accumulate})
    wanted = train_stale(
        setup,
        names_by_stage=list_names(captured, plan),
        warmups=plan.policy.warmups,
        forward=forward,
        clip_norm=setup.pipeline.get("clip_norm"),
    )
    found: list[Streamed] = crew.run(2, stream_batches, setup)
    for each in found:
        assert each.result.losses == pytest.approx(wanted.losses, abs=TOLERANCE)
        for weight, tensor in each.result.weights.items():
            torch.testing.assert_close(
                tensor, wanted.weights[weight], atol=TOLERANCE, rtol=TOLERANCE
            )
