"""Weight policies in the steady state: emulated ranks against the ideal period and 1F1B-flush.

    python tools/bench_policies.py              # 4 ranks, batches of 64 and of 8 micro-batches
    python tools/bench_policies.py --json FILE

Real processes and messages, waits in place of compute. The ideal period is the work of the busiest
device for one micro-batch, its share of the update included; the predicted ratio is flush's
simulated step over the policy's simulated steady step. The measured period is the median time
between two forwards of the last stage in one batch; steps are rank 0's, without the first two, the
median and the least of them: on a shared machine the least is the least disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.files import read_noun, write_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import PolicyName
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.timeline import Timeline
from graphplan.planner.loads import measure_load
from graphplan.planner.streaming import predict_stream
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.steady import plan_steady
from tests.pure.plans import finish_plan
from tests.pure.strategies import chain_prices

NUM_RANKS = 4
FORWARD_S, BACKWARD_S, UPDATE_S = 0.020, 0.040, 0.002
POLICIES: tuple[PolicyName, ...] = ("stash", "2bw", "predict")
"""Where compute is a wait, all policies that update after every micro-batch run one program."""


def main() -> None:
    """Measure all policies at both sizes of a batch."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[64, 8])
    parser.add_argument("--total", type=int, default=384, help="Micro-batches of a run.")
    parser.add_argument("--policies", nargs="*", default=POLICIES, help="Beside flush.")
    parser.add_argument("--json", dest="path", help="Write the figures there.")
    arguments = parser.parse_args()
    found = [
        row
        for count in arguments.micro_batches
        for row in compare_policies(count, max(4, arguments.total // count), arguments.policies)
    ]
    if arguments.path:
        Path(arguments.path).write_text(json.dumps(found, indent=1))


def compare_policies(
    count: int, steps: int, policies: Sequence[PolicyName]
) -> list[dict[str, Any]]:
    """A row for flush and for every policy."""
    priced = chain_prices(
        NUM_RANKS,
        count,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        update_s=UPDATE_S,
        latency_s=5e-6,
    )
    print(f"{count} micro-batches a batch, {steps} batches", flush=True)
    flush = finish_plan(priced).plan
    rows = [measure_plan(flush, steps, flush)]
    for name in policies:
        rows.append(measure_plan(plan_policy(flush, priced, name), steps, flush, rows[0]))
    return rows


def plan_policy(flush: Plan, priced: PricedStages, name: PolicyName) -> Plan:
    """The same stages under another policy."""
    policy, schedule = plan_steady(priced, name)
    program = lower_schedule(priced, schedule, policy)
    return msgspec.structs.replace(
        flush,
        policy=policy,
        program=tuple(str(program).split("\n")),
        prediction=predict_stream(priced, policy, program),
    )


def measure_plan(
    plan: Plan, steps: int, flush: Plan, measured: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Emulate a plan and compare its step with prediction, ideal and flush."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        write_noun(plan, path)
        spans = Path(folder) / "timeline.json"
        words = ["run", str(path), "--emulate", "--steps", str(steps), "--json"]
        words += ["--timeline", str(spans)]
        done = subprocess.run(
            [sys.executable, "-m", "graphplan", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        period_s = read_period(read_noun(spans, Timeline))
    facts = json.loads(done.stdout)
    count = plan.prices.num_micro_batches(0)
    step_s, least_s = statistics.median(facts["step_s"][2:]), min(facts["step_s"][2:])
    ideal_s = count * measure_load(plan.prices, count)
    if not plan.policy.is_synchronous:
        ideal_s = count * measure_load(plan.prices, plan.policy.accumulate)
    row = {
        "policy": plan.policy.name,
        "micro_batches": count,
        "step_s": step_s,
        "least_step_s": least_s,
        "period_s": period_s,
        "predicted_step_s": plan.prediction.step_s,
        "ideal_step_s": ideal_s,
        "over_ideal": count * period_s / ideal_s - 1,
        "predicted_ratio": flush.prediction.step_s / plan.prediction.step_s,
        "ratio": (measured or {"least_step_s": least_s})["least_step_s"] / least_s,
    }
    print(
        f"{row['policy']:14s} period {period_s * 1e3:6.2f} ms, {row['over_ideal']:6.1%} over ideal"
        f"  step {step_s * 1e3:8.1f} ms, least {least_s * 1e3:8.1f}, predicted"
        f" {row['predicted_step_s'] * 1e3:8.1f}  least over flush's"
        f" {row['ratio']:.3f}x, predicted {row['predicted_ratio']:.3f}x",
        flush=True,
    )
    return row


def read_period(timeline: Timeline) -> float:
    """The median time between two forwards of the last stage, from its second half on."""
    last = NUM_RANKS - 1
    starts = [s.start_s for s in timeline.spans if s.name.startswith(f"{last}F")]
    return statistics.median(b - a for a, b in pairwise(starts[len(starts) // 2 :]))


if __name__ == "__main__":
    main()
