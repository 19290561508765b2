"""Convergence of the weight policies on three small tasks: PipeOptim's claim in small.

    python tools/staleness_convergence.py --json docs/images/staleness_convergence.json

A CNN, an LSTM classifier and a translation model of four stages each are trained for ten epochs
with SGD-momentum, Adam and AdamW under every policy, by replaying the pipeline's schedule in one
process. Every method gets its own learning rate (`staleness_tuning`); `flush` with one micro-batch
a batch is the control without staleness. 2bw gets four micro-batches an update, so that its control
is `flush` with four. The figure of merit is the loss on all training samples after the last update.
Rows that the file already holds are kept.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.steady import build_steady
from graphplan.staleness.optimizers import Adam, Optimizer, Sgd
from graphplan.staleness.replay import replay_schedule
from graphplan.staleness.shapes import make_chain
from tools.staleness_tasks import EVERYTHING, NUM_EPOCHS, NUM_SAMPLES, TASKS, Task
from tools.staleness_tuning import REPORT_SEEDS, fill_rows, tune_rate

METHODS: dict[str, tuple[PolicyName, int]] = {
    "flush": ("flush", 1),
    "naive": ("naive", 1),
    "stash": ("stash", 1),
    "predict": ("predict", 1),
    "spectrain1": ("spectrain1", 1),
    "spectrain2": ("spectrain2", 1),
    "flush, m=4": ("flush", 4),
    "2bw, m=4": ("2bw", 4),
}
"""Policy and micro-batches of an update."""
GRIDS = {
    "sgd-momentum": [0.0025 * 2**i for i in range(6)],
    "adam": [0.001 * 2**i for i in range(6)],
    "adamw": [0.001 * 2**i for i in range(6)],
}
NUM_POINTS = 20
"""Points of a curve."""


def make_optimizer(name: str, rates: Sequence[float]) -> Optimizer:
    """One optimizer for all runs, each with its own rate."""
    rate = torch.tensor(rates).unsqueeze(1)
    if name == "sgd-momentum":
        return Sgd(rate=rate, momentum=0.9)
    return Adam(rate=rate, weight_decay=0.01 if name == "adamw" else 0.0)


def train_runs(
    task: Task, method: str, optimizer: str, rates: Sequence[float], seeds: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Final losses of all runs on all samples, and their mean curve on micro-batches."""
    name, accumulate = METHODS[method]
    count = NUM_EPOCHS * NUM_SAMPLES // task.batch_size
    num_stages = len(task.layouts)
    model = task.make_model(seeds)
    rule = make_optimizer(optimizer, rates)
    if name == "flush":
        priced = make_chain(num_stages, num_micro_batches=accumulate)
        replay = replay_schedule(
            priced,
            build_gpipe(priced),
            WeightPolicy(),
            model,
            rule,
            num_batches=count // accumulate,
        )
    else:
        priced = make_chain(num_stages, num_micro_batches=count)
        policy = WeightPolicy(name=name, warmups=priced.heights, accumulate=accumulate)
        replay = replay_schedule(priced, build_steady(priced, policy), policy, model, rule)
    final = model.evaluate(replay.weights, EVERYTHING).tolist()
    means = torch.stack([model.losses[m] for m in range(count)]).mean(1)
    return final, means.view(NUM_POINTS, -1).mean(1).tolist()


def measure_method(task: Task, method: str, optimizer: str) -> dict[str, Any]:
    """Tune, then measure with fresh seeds."""
    curves: list[list[float]] = []

    def measure(rates: Sequence[float], seeds: Sequence[int]) -> list[float]:
        final, curve = train_runs(task, method, optimizer, rates, seeds)
        curves.append(curve)
        return final

    tuned = tune_rate(measure, GRIDS[optimizer])
    return {**tuned.describe(), "curve": curves[-1]}


def main() -> int:
    """Run what the file does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--task", choices=sorted(TASKS), action="append")
    parser.add_argument("--optimizer", choices=sorted(GRIDS), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_task = functools.cache(lambda name: TASKS[name]())
    fill_rows(
        options.json,
        (
            {"task": name, "optimizer": optimizer, "method": method}
            for name in options.task or TASKS
            for optimizer in options.optimizer or GRIDS
            for method in METHODS
        ),
        lambda key: measure_method(make_task(key["task"]), key["method"], key["optimizer"]),
        head={"seeds": len(REPORT_SEEDS), "epochs": NUM_EPOCHS},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
