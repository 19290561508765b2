"""Weight policies: exact oracles, on several processes, with batches that follow one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch

from graphplan.nouns.policy import PolicyName
from graphplan_runtime import Pipeline
from tests.processes.crew import Crew
from tests.processes.models import CASES
from tests.processes.plans import assign_stages, plan_by_hand
from tests.processes.training import capture_case

EXACT = 1e-12


def trace_weights(runs: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """For each run this rank's weight after every update, all runs in one process group."""
    torch.set_default_dtype(torch.float64)
    return [trace_one(**run) for run in runs]


def trace_one(
    case: str,
    policy: PolicyName,
    *,
    lr: float,
    updates: int = 6,
    batch_size: int = 2,
    optimizer: str = "sgd",
    **options: Any,
) -> list[float]:
    """Weights after updates 1, 2, …; a batch has `batch_size` micro-batches of one sample."""
    captured, model = capture_case(case, torch.float64), CASES[case]
    num = model.num_stages
    plan = plan_by_hand(
        captured.graph,
        assign_stages(captured.graph, model.stage_by_module),
        devices=[(s,) for s in range(num)],
        batch_size=batch_size,
        micro_batch_size=1,
        policy=policy,
        policy_options=options,
    )
    made = {"sgd": 0.0, "momentum": 0.5}
    pipeline = Pipeline(
        plan,
        captured,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=made[optimizer]),
        state=model.build().state_dict(),
    )
    found: list[float] = []
    for versions in pipeline.versions.values():
        watch_updates(versions, found)
    per_update = batch_size if policy in ("flush", "local") else options.get("accumulate", 1)
    for _ in range(updates * per_update // batch_size):
        pipeline.step(model.inputs(batch_size))
    pipeline.drain()
    return found


def watch_updates(versions: Any, found: list[float]) -> None:
    """Note the weight whenever it has been updated."""
    told = versions.updated

    def updated() -> None:
        told()
        found.extend(float(each.detach()) for each in versions.trainable)

    versions.updated = updated


def fractions(text: str) -> list[float]:
    """`1/4 3/8` as numbers."""
    return [float(Fraction(word)) for word in text.split()]


SGD2 = "1/4 3/8 7/16 15/32 31/64 63/128"
STASH2 = "1/4 7/16 33/64 135/256 529/1024 2071/4096"
TWO2 = "1/4 1/2 5/8 5/8 9/16 1/2"
ORACLES2: list[tuple[dict[str, Any], str]] = [
    ({"policy": "flush", "batch_size": 1}, SGD2),
    ({"policy": "stash"}, STASH2),
    ({"policy": "stash", "batch_size": 1}, STASH2),
    ({"policy": "naive"}, STASH2),
    ({"policy": "2bw", "accumulate": 1}, TWO2),
    ({"policy": "2bw", "accumulate": 2}, TWO2),
    ({"policy": "2bw", "accumulate": 3, "batch_size": 6}, TWO2),
    ({"policy": "predict"}, "1/4 7/16 29/64 111/256 469/1024 2007/4096"),
    (
        {"policy": "predict", "direction": "displacement"},
        "1/4 7/16 29/64 111/256 469/1024 2007/4096",
    ),
]
ORACLES3: list[tuple[dict[str, Any], str]] = [
    ({"policy": "flush", "batch_size": 1}, "1/8 13/64 129/512 1157/4096"),
    ({"policy": "stash"}, "1/8 15/64 161/512 1455/4096"),
    ({"policy": "naive"}, "1/8 15/64 161/512 1455/4096"),
    ({"policy": "vertical-sync"}, "1/8 1/4 3/8 29/64"),
    ({"policy": "2bw", "accumulate": 2}, "1/8 1/4 21/64 23/64"),
    ({"policy": "predict"}, "1/8 15/64 153/512 1215/4096"),
    ({"policy": "spectrain1"}, "1/8 7/32 35/128 139/512"),
]


@pytest.mark.parametrize(
    ("case", "lr", "oracles"), [("sum2", 0.25, ORACLES2), ("sum3", 0.125, ORACLES3)]
)
def test_exact_fractions(
    crew: Crew, case: str, lr: float, oracles: list[tuple[dict[str, Any], str]]
) -> None:
    """a += w_s, loss (a - 1)^2 / 2: every stage has the weights that can be computed by hand."""
    runs = [
        {"case": case, "lr": lr, "updates": len(text.split()), **setup} for setup, text in oracles
    ]
    by_rank = crew.run(CASES[case].num_stages, trace_weights, runs)
    for i, (setup, text) in enumerate(oracles):
        for rank, found in enumerate(by_rank):
            assert found[i] == pytest.approx(fractions(text), abs=EXACT), (setup, rank)
