"""Training by pipeline and in one process, to be compared."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from graphplan.frontend import Captured, trace_module
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import PolicyName
from graphplan.nouns.stages import ZeroLevel
from graphplan_runtime import Pipeline
from tests.processes.models import CASES, tokens
from tests.processes.plans import assign_stages, plan_by_hand

Devices = Sequence[tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One case of the matrix; everything in it can be sent to another process."""

    case: str
    devices: Devices
    schedule: str = "1f1b"
    batch_size: int = 8
    micro_batch_size: int | Sequence[int] = 2
    num_steps: int = 3
    rows_by_step: Sequence[int] | None = None
    lengths_by_step: Sequence[int] | None = None
    infinite_steps: Sequence[int] = ()
    """Batches with an infinite number, which makes gradients of the first stage infinite."""
    recompute: Sequence[int] = ()
    again: Sequence[str] = ()
    """Modules that are recomputed."""
    zero: Sequence[ZeroLevel] = ()
    """By stage; () for none."""
    stage_by_module: Mapping[str, int] | None = None
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pipeline: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: str = "momentum"
    policy: PolicyName = "flush"
    policy_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_ranks(self) -> int:
        """Devices of the plan."""
        return 1 + max(max(each) for each in self.devices)


@dataclasses.dataclass(frozen=True)
class Result:
    """Losses by step and final weights by name."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


@functools.lru_cache
def capture_case(name: str, dtype: torch.dtype = torch.float64) -> Captured:
    """The captured model of a case."""
    case, held = CASES[name], torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return trace_module(case.build(), case.inputs, loss=case.loss, name=name)
    finally:
        torch.set_default_dtype(held)


def plan_case(setup: Setup, captured: Captured) -> Plan:
    """The plan of a case."""
    modules = setup.stage_by_module or CASES[setup.case].stage_by_module
    return plan_by_hand(
        captured.graph,
        assign_stages(captured.graph, modules),
        devices=setup.devices,
        batch_size=setup.batch_size,
        micro_batch_size=setup.micro_batch_size,
        schedule=setup.schedule,
        recompute=setup.recompute,
        zero=setup.zero,
        again=setup.again,
        training=setup.training,
        policy=setup.policy,
        policy_options=setup.policy_options,
    )


def build_model(setup: Setup) -> nn.Module:
    """The model of a case, always with the same weights."""
    torch.manual_seed(1)
    return CASES[setup.case].build()


def make_batches(setup: Setup) -> list[Any]:
    """One batch for each step, always the same ones."""
    torch.manual_seed(2)
    if setup.lengths_by_step:
        return [tokens(length)(setup.batch_size) for length in setup.lengths_by_step]
    sizes = setup.rows_by_step or [setup.batch_size] * setup.num_steps
    batches = [CASES[setup.case].inputs(size) for size in sizes]
    for step in setup.infinite_steps:
        batches[step][0][0, 0] = math.inf
    return batches


def make_optimizer(setup: Setup, parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of a case."""
    if setup.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    if setup.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=0.01)
    if setup.optimizer == "plain":
        return torch.optim.SGD(parameters, lr=0.05)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def make_pipeline(setup: Setup, *, dtype: torch.dtype = torch.float64) -> Pipeline:
    """This rank's part of the plan of a case."""
    torch.set_default_dtype(dtype)
    captured, case = capture_case(setup.case, dtype), CASES[setup.case]
    return Pipeline(
        plan_case(setup, captured),
        captured,
        optimizer=lambda parameters: make_optimizer(setup, parameters),
        state=build_model(setup).state_dict(),
        recapture=lambda inputs: trace_module(case.build(), inputs, loss=case.loss),
        **setup.pipeline,
    )


def read_weights(pipeline: Pipeline) -> dict[str, torch.Tensor]:
    """Copies of the weights of this rank."""
    return pipeline.gather_weights()


def train_pipeline(setup: Setup, dtype: torch.dtype = torch.float64) -> Result:
    """Train on this rank's part of the plan; the weights are those of its stages."""
    pipeline = make_pipeline(setup, dtype=dtype)
    losses = [pipeline.step(batch) for batch in make_batches(setup)]
    return Result(losses, read_weights(pipeline))


def train_dtypes(setup: Setup, dtypes: Sequence[torch.dtype]) -> list[Result]:
    """The same training in several precisions."""
    return [train_pipeline(setup, dtype) for dtype in dtypes]


def train_whole(
    setup: Setup,
    *,
    clip_norm: float | None = None,
    num_parts: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Result:
    """Train the eager model in this process, on whole batches or on `num_parts` equal parts."""
    held = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model, case = build_model(setup), CASES[setup.case]
        optimizer = make_optimizer(setup, [p for p in model.parameters() if p.requires_grad])
        losses = []
        for batch in make_batches(setup):
            losses.append(0.0)
            for part in zip(*(tensor.chunk(num_parts) for tensor in batch), strict=True):
                loss = case.loss(model(*part[:-1]), part) / num_parts
                torch.autograd.backward(loss)
                losses[-1] += loss.item()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
            optimizer.zero_grad()
        return Result(losses, model.state_dict())
    finally:
        torch.set_default_dtype(held)
