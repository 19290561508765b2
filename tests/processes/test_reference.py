"""The reference draws what the tasks of a plan drew, and says what it cannot have the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphplan.errors import InvalidOption
from graphplan.frontend import trace_module
from graphplan_runtime.options import RunOptions
from graphplan_runtime.stages.randomness import draws_numbers
from tests.processes.crew import Crew
from tests.processes.drawing import Question, compare

ROUNDING = 5e-7
"""Losses are about one; the mean over a batch is that of parts in another order."""
SPLITS = {
    "fewer rows later": ((8, 4), ()),
    "fewer rows earlier": ((4, 8), ()),
    "recomputed": ((8, 8), (0, 1)),
}
EXACT = ["Dropped", "InPlace", "Noisy", "Attending", "Encoding"]
EXACT += ["Recurrent", "Turned", "Speech", "Rerun"]


@pytest.mark.parametrize("kind", EXACT)
def test_random_ops_draw_what_the_tasks_drew(crew: Crew, kind: str) -> None:
    """On whole batches, with replicas, unequal micro-batches and recomputation."""
    questions = [
        Question(kind=kind, micro_batch_size=sizes, recompute=recompute)
        for sizes, recompute in SPLITS.values()
    ]
    found = crew.run(3, compare, questions)[0]
    for name, (gap, hint) in zip(SPLITS, found, strict=True):
        assert gap < ROUNDING, name
        assert hint == ""


@pytest.mark.parametrize("kind", ["Shared", "Shuffled"])
def test_draws_for_a_whole_task_are_exact_by_micro_batch(crew: Crew, kind: str) -> None:
    """One number for all samples of a task has no place in a whole batch, and that is told."""
    whole = Question(kind=kind, micro_batch_size=(4, 8))
    parts = dataclasses.replace(whole, way="micro-batch")
    (_, hint), (gap, none) = crew.run(3, compare, [whole, parts])[0]
    assert gap < ROUNDING
    assert none == ""
    op = {"Shared": "rand", "Shuffled": "randperm"}[kind]
    assert f"Op {op} draws other numbers" in hint
    assert "--reference micro-batch" in hint


def test_a_batch_norm_that_replicas_split_is_told(crew: Crew) -> None:
    """Its losses are not those of one process on whole batches, and the run says why."""
    split = Question(kind="Normed", micro_batch_size=(16, 16))
    alone = dataclasses.replace(split, devices=((0,), (1,)))
    ((gap, hint),) = crew.run(3, compare, [split])[0]
    ((none, silence),) = crew.run(2, compare, [alone])[0]
    assert gap > 100 * ROUNDING
    assert "Op batch_norm_1 mixes the samples of a batch, which the plan splits" in hint
    assert none < ROUNDING
    assert silence == ""


def test_parts_that_are_smaller_than_a_task_take_their_rows_of_its_draws(crew: Crew) -> None:
    """By micro-batches of the last stage, which are smaller than those of the first."""
    kinds = ("Dropped", "Noisy", "Shared", "Encoding")
    questions = [Question(kind=kind, way="micro-batch", micro_batch_size=(8, 4)) for kind in kinds]
    found = crew.run(3, compare, questions)[0]
    assert {kind: gap for kind, (gap, _) in zip(kinds, found, strict=True) if gap > ROUNDING} == {}


@pytest.mark.parametrize("mixed", [True, False])
def test_reduced_precision_is_that_of_the_plan(crew: Crew, mixed: bool) -> None:
    """Under autocast losses are equal; in bf16 alone up to one unit in the last place."""
    questions = [
        Question(
            kind=kind,
            training={"precision": "bfloat16", "mixed": mixed},
            way="micro-batch",
            micro_batch_size=(4, 8),
        )
        for kind in ("Dropped", "Encoding")
    ]
    for gap, _ in crew.run(3, compare, questions)[0]:
        assert gap <= (0.0 if mixed else 2.0**-8)


@pytest.mark.parametrize("policy", ["stash", "2bw", "naive"])
def test_a_policy_with_a_delay_is_told_and_dropout_is_not_blamed(crew: Crew, policy: str) -> None:
    """The reference trains without delay, and so must differ."""
    question = Question(
        kind="Dropped", policy=policy, devices=((0,), (1,)), micro_batch_size=(4, 4)
    )
    gap, hint = crew.run(2, compare, [question])[0][0]
    assert gap > ROUNDING
    assert f"Policy {policy} updates with a delay of up to 1" in hint
    assert "expected to differ" in hint
    assert "draws" not in hint


def test_a_resumed_run_has_no_reference() -> None:
    """The reference would start from other weights and batches than the run."""
    options = RunOptions(plan="plan.json", model="model.py", reference="batch", resume="saved")
    with pytest.raises(InvalidOption, match="from the first step"):
        options.check()


def test_random_ops_in_an_autocast_block_are_seeded() -> None:
    """A dropout in a block of its own is wrapped, and was not seen: recomputation drew anew."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return functional.dropout(self.linear(x), 0.5).float()

    captured = trace_module(Block(), lambda size: (torch.randn(size, 4),))
    assert draws_numbers(captured.module.graph)
