"""check_plan: judge a whole plan; any plan that can be read gets a verdict."""

from __future__ import annotations

import math

from graphplan.errors import InvalidProgram
from graphplan.nouns.plan import Plan
from graphplan.nouns.schedule import Program
from graphplan.referee.buckets import judge_presence, measure_work
from graphplan.referee.prices import compare_prices, judge_cluster, judge_prices
from graphplan.referee.program import judge_program
from graphplan.referee.stages import judge_stages
from graphplan.referee.verdict import Findings, Verdict
from graphplan.referee.weights import judge_sharing, judge_weights

TOLERANCE = 1e-9
"""Relative: sums of the same seconds in another order differ by less."""


def check_plan(plan: Plan) -> Verdict:
    """Judge stages, prices, program, policy, memory, prediction and bound."""
    findings = Findings()
    judge_stages(plan.model, plan.stages, findings)
    of_prices = Findings()
    judge_prices(plan.prices, of_prices)
    compare_prices(plan.prices, plan.stages, plan.training, findings)
    judge_sharing(plan.stages, plan.policy, findings)
    judge_weights(plan.prices, plan.stages, plan.training, plan.policy, findings)
    judge_presence(plan.prices, plan.stages, plan.policy, findings)
    judge_cluster(plan.prices, plan.stages, plan.cluster, findings)
    program = _parse_program(plan, findings)
    if of_prices.is_clean and program is not None:
        peaks = plan.prediction.peak_bytes_by_device
        judge_program(plan.prices, program, plan.policy, findings, predicted_bytes=peaks)
        if findings.is_clean:
            _judge_work(plan, program, findings)
    findings.extend(of_prices)
    _judge_prediction(plan, findings)
    return findings.conclude()


def _parse_program(plan: Plan, findings: Findings) -> Program | None:
    for number, line in enumerate(plan.program):
        if "\n" in line:
            findings.add("program-text", f"device {number}", "the line contains a line break.")
            return None
    try:
        return plan.parse_program()
    except InvalidProgram as error:
        findings.add("program-text", "program", f"{error.__cause__}.")
        return None


def _judge_work(plan: Plan, program: Program, findings: Findings) -> None:
    """No step is shorter than the work of its busiest device and the buckets that it waits for."""
    for device, line in enumerate(program.instructions_by_device):
        work_s = measure_work(plan.prices, line)
        if plan.prediction.step_s < work_s * (1 - TOLERANCE):
            findings.add(
                "prediction",
                f"device {device}",
                f"works for {work_s} s, longer than the predicted step of"
                f" {plan.prediction.step_s} s.",
            )


def _judge_prediction(plan: Plan, findings: Findings) -> None:
    prediction, bound = plan.prediction, plan.bound.step_s
    numbers = {
        "step_s": prediction.step_s,
        "samples_per_s": prediction.samples_per_s,
        "bubble": prediction.bubble,
        "bound.step_s": bound,
    }
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            findings.add("prediction", name, f"is {value}.")
    if prediction.step_s < bound * (1 - TOLERANCE):
        findings.add(
            "bound",
            "prediction",
            f"a step of {prediction.step_s} s is predicted, below the bound of {bound} s.",
        )
