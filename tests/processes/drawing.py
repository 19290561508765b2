"""Models that draw random numbers in every way, or mix samples: pipeline and reference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from graphplan.frontend import Captured, ModelFile, trace_model_file
from graphplan_runtime import Pipeline
from graphplan_runtime.options import Reference as Way
from graphplan_runtime.options import RunOptions
from graphplan_runtime.reference import Reference, explain_gap, largest_gap
from graphplan_runtime.train import choose_optimizer
from tests.processes.plans import assign_stages, plan_by_hand

WIDTH, LENGTH = 8, 3


class Block(nn.Module):
    """A linear layer, and what a case does around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(self.linear(x))

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Dropped(Block):
    """nn.Dropout, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.drop(torch.tanh(self.drop(x)))
        return made


class InPlace(Block):
    """Functional dropout in place, and RReLU."""

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(x * 1.0, 0.4, training=True, inplace=True)
        return functional.rrelu(x, training=True)


class Noisy(Block):
    """Noise like a value, of the batch's size, and a Bernoulli mask with probabilities."""

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.1 * torch.rand_like(x)
        x = x + 0.1 * torch.randn(x.shape[0], 1, WIDTH)
        return x * torch.bernoulli(torch.sigmoid(x.detach()))


class Attending(Block):
    """Attention with dropout of its probabilities, by the fused function and by torch's module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.2)

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(-1, LENGTH, 2, WIDTH // 2).transpose(1, 2)
        found = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2)
        x = x + found.transpose(1, 2).flatten(2)
        first = x.transpose(0, 1)
        made: torch.Tensor = self.attention(first, first, first)[0]
        return made.transpose(0, 1)


class Encoding(Block):
    """A transformer layer with its three dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.2, batch_first=True)

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)
        return made


class Recurrent(Block):
    """An LSTM of two layers with dropout between them, which is one op."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.3, batch_first=True)

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.lstm(x)[0]
        return made


class Turned(Block):
    """What a stage gives lies in another order there than where it arrives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(x + 0.1 * torch.rand_like(x))
        return found.transpose(1, 2).contiguous().transpose(1, 2)


class Speech(Block):
    """Whole features dropped, with the features in front of the time, and alpha dropout."""

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout1d(x.transpose(1, 2), 0.3).transpose(1, 2)
        return functional.feature_alpha_dropout(functional.alpha_dropout(x, 0.2, True), 0.2, True)


class Rerun(Dropped):
    """Activation checkpointing, which runs the block again in the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return made


class Shared(Block):
    """One drawn number for all samples of a task."""

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(WIDTH)


class Shuffled(Block):
    """Samples mixed with others of their task, in a drawn order."""

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        return 0.7 * x + 0.3 * x[torch.randperm(x.shape[0])]


class Normed(Block):
    """Nothing drawn: batch norm, whose statistics are those of a task."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(LENGTH)

    def draw(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(x)
        return made


class Whole(nn.Module):
    """Two blocks of a kind, one for each stage, and a linear end."""

    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = kind()
        self.second = nn.Sequential(kind(), nn.Linear(WIDTH, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.first(x))
        return made


KINDS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        Dropped,
        InPlace,
        Noisy,
        Attending,
        Encoding,
        Recurrent,
        Turned,
        Speech,
        Rerun,
        Shared,
        Shuffled,
        Normed,
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One comparison; can be sent to another process."""

    kind: str
    way: Way = "batch"
    devices: Sequence[tuple[int, ...]] = ((0,), (1, 2))
    micro_batch_size: Sequence[int] = (4, 8)
    recompute: Sequence[int] = ()
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    policy: Any = "flush"
    schedule: str = "1f1b"


def compare(questions: Sequence[Question]) -> list[tuple[float, str]]:
    """For each question the largest difference of the losses, and the hint, on rank 0."""
    return [_compare(question) for question in questions]


@functools.lru_cache
def _capture(kind: str) -> tuple[ModelFile, Captured]:
    model_file = ModelFile(
        path=Path("drawing.py"),
        name=kind,
        build=lambda: Whole(KINDS[kind]),
        inputs=lambda batch_size: (torch.randn(batch_size, LENGTH, WIDTH),),
        loss=lambda output, batch: (output - batch[0][..., :2]).pow(2).mean(),
    )
    return model_file, trace_model_file(model_file)


def _compare(question: Question) -> tuple[float, str]:
    model_file, captured = _capture(question.kind)
    plan = plan_by_hand(
        captured.graph,
        assign_stages(captured.graph, {"first": 0, "second": 1, "loss": 1}),
        devices=question.devices,
        batch_size=16,
        micro_batch_size=question.micro_batch_size,
        recompute=question.recompute,
        training=question.training,
        policy=question.policy,
        schedule=question.schedule,
    )
    options = RunOptions(plan="", model="", steps=3, seed=5, reference=question.way)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        state = model_file.build().state_dict()
    pipeline = Pipeline(
        plan,
        captured,
        optimizer=choose_optimizer(plan, options, model_file),
        seed=options.seed,
        state=state,
    )
    reference = Reference(pipeline, model_file, options)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    losses = list(pipeline.stream(_batches(options.steps)))
    if pipeline.rank != 0:
        return 0.0, ""
    gap = largest_gap(zip(losses, reference.train_on(_batches(options.steps)), strict=True))
    assert torch.equal(before, torch.get_rng_state()), "the user's generator is left as it was"
    return gap, explain_gap(gap, reference.list_reasons()).get("hint", "")


def _batches(num_steps: int) -> list[tuple[torch.Tensor, ...]]:
    rng = torch.Generator().manual_seed(3)
    return [(torch.randn(16, LENGTH, WIDTH, generator=rng),) for _ in range(num_steps)]
