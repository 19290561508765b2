"""PipeDream's delays beside random ones, and beside LocalSGD in the same simulated time.

    python tools/staleness_delays.py --json docs/images/staleness_delays.json

control     plain SGD on N micro-batches: no staleness, whatever the time
pipedream   stash on a chain of S stages: N micro-batches in 2 N + 2 (S - 1) ticks
rpd         Randomized PipeDream: N S updates of a random stage each, with reads of every block up
            to floor(S^2 - S/2) block updates old, drawn at random
local H     LocalSGD with S replicas, averaged after H local steps, on the micro-batches that fit
            into PipeDream's time

Plain SGD everywhere. Every method gets its own learning rate (`staleness_tuning`). The figure of
merit is the excess of the full loss over its optimum (language model: the training loss).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.steady import build_steady
from graphplan.staleness.bounds import chain_delay
from graphplan.staleness.localsgd import localsgd_ticks, pipedream_ticks
from graphplan.staleness.optimizers import Sgd
from graphplan.staleness.replay import replay_schedule
from graphplan.staleness.shapes import make_chain
from tools.staleness_problems import PROBLEMS, find_optimum
from tools.staleness_tasks import EVERYTHING
from tools.staleness_torch import StagedModel
from tools.staleness_tuning import REPORT_SEEDS, fill_rows, tune_rate

NUM_MICRO_BATCHES = 600
STAGES = {"quadratic": (4, 8, 16), "logistic": (4, 8, 16), "charlm": (4, 8)}
METHODS = ("control", "pipedream", "rpd", "local 2", "local 5", "local 30")
GRID = [0.0125 * 2**i for i in range(6)]


def replicate_chain(num_stages: int, num_replicas: int) -> PricedStages:
    """A chain with so many devices for every stage."""
    chain = make_chain(num_stages)
    stages = tuple(
        msgspec.structs.replace(
            stage,
            devices=tuple(range(s * num_replicas, (s + 1) * num_replicas)),
            micro_batch_size=num_replicas,
        )
        for s, stage in enumerate(chain.stages)
    )
    memory = chain.memory_bytes_by_device[:1] * (num_stages * num_replicas)
    return msgspec.structs.replace(
        chain, stages=stages, batch_size=num_replicas, memory_bytes_by_device=memory
    )


def count_local(num_stages: int, local_steps: int) -> int:
    """Most micro-batches of LocalSGD, whole steps of all replicas, in PipeDream's time."""
    budget = pipedream_ticks(num_stages, NUM_MICRO_BATCHES)
    fitting = [
        count
        for count in range(num_stages, NUM_MICRO_BATCHES + 1, num_stages)
        if localsgd_ticks(num_stages, count, num_replicas=num_stages, local_steps=local_steps)
        <= budget
    ]
    return fitting[-1]


def run_method(model: StagedModel, method: str, rates: Tensor) -> tuple[Tensor, ...]:
    """The weights of all stages after the run."""
    num_stages = len(model.layouts)
    optimizer = Sgd(rate=rates)
    if method == "rpd":
        return run_random(model, rates)
    if method == "pipedream":
        priced = make_chain(num_stages, num_micro_batches=NUM_MICRO_BATCHES)
        policy = WeightPolicy(name="stash", warmups=priced.heights)
        return replay_schedule(
            priced, build_steady(priced, policy), policy, model, optimizer
        ).weights
    policy, priced, count = WeightPolicy(), make_chain(num_stages), NUM_MICRO_BATCHES
    if method.startswith("local"):
        steps = int(method.split()[1])
        policy = WeightPolicy(name="local", local_steps=steps)
        priced = replicate_chain(num_stages, num_stages)
        count = count_local(num_stages, steps) // num_stages
    return replay_schedule(
        priced, build_gpipe(priced), policy, model, optimizer, num_batches=count
    ).weights


def run_random(model: StagedModel, rates: Tensor) -> tuple[Tensor, ...]:
    """Randomized PipeDream; stages and delays are drawn for every run by its seed."""
    num_stages, runs = len(model.layouts), len(model.seeds)
    longest = chain_delay(num_stages)
    num_steps = NUM_MICRO_BATCHES * num_stages
    draws = {seed: _draw_steps(seed, num_steps, num_stages, longest) for seed in set(model.seeds)}
    chosen = torch.stack([draws[seed][0] for seed in model.seeds])
    delays = torch.stack([draws[seed][1] for seed in model.seeds])
    blocks = [model.start_weights(stage) for stage in range(num_stages)]
    history = [block.repeat(longest + 1, 1, 1) for block in blocks]
    every = torch.arange(runs)
    for step in range(num_steps):
        now = step % (longest + 1)
        for stage, block in enumerate(blocks):
            history[stage][now] = block
        at = (step - delays[:, step].clamp(max=step)) % (longest + 1)
        mixed = [past[at[:, stage], every].requires_grad_() for stage, past in enumerate(history)]
        value: tuple[Tensor, ...] = ()
        for stage, layout in enumerate(model.layouts):
            value = (model.run_stage(stage, layout.view_weights(mixed[stage]), value, step),)
        gradients = torch.autograd.grad(value[0].sum(), mixed)
        for stage, gradient in enumerate(gradients):
            taken = (chosen[:, step] == stage).unsqueeze(1)
            blocks[stage] = blocks[stage] - rates * taken * gradient
    return tuple(blocks)


def _draw_steps(seed: int, num_steps: int, num_stages: int, longest: int) -> tuple[Tensor, Tensor]:
    """The stage of every step, and the delay of every block's read in it."""
    generator = torch.Generator().manual_seed(55_000 + seed)
    chosen = torch.randint(num_stages, (num_steps,), generator=generator)
    delays = torch.randint(longest + 1, (num_steps, num_stages), generator=generator)
    return chosen, delays


def measure_method(problem: str, num_stages: int, method: str) -> dict[str, Any]:
    """Tune, then measure with fresh seeds."""
    least = find_optimum(problem)

    def measure(rates: Sequence[float], seeds: Sequence[int]) -> list[float]:
        model = PROBLEMS[problem](num_stages, seeds)
        weights = run_method(model, method, torch.tensor(rates).unsqueeze(1))
        return [loss - least for loss in model.evaluate(weights, EVERYTHING).tolist()]

    tuned = tune_rate(measure, GRID)
    local = int(method.split()[1]) if method.startswith("local") else None
    count = count_local(num_stages, local) if local else NUM_MICRO_BATCHES
    return {"micro_batches": count, **tuned.describe()}


def main() -> int:
    """Run what the file does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--problem", choices=sorted(PROBLEMS), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    fill_rows(
        options.json,
        (
            {"problem": problem, "stages": num_stages, "method": method}
            for problem in options.problem or PROBLEMS
            for num_stages in STAGES[problem]
            for method in METHODS
        ),
        lambda key: measure_method(key["problem"], key["stages"], key["method"]),
        head={"seeds": len(REPORT_SEEDS), "micro_batches": NUM_MICRO_BATCHES},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
