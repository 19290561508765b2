"""Rule `price-weights`: a stage's fixed bytes hold every copy of its weights that training makes.

weights     as many versions as the policy keeps
gradients   one
optimizer   its states; under mixed precision also master weights, all in 32 bits
directions  one buffer where predict and spectrain need a direction that the optimizer does not
            keep: the last change of the weights, or the last gradient of plain SGD

Rule `zero`: replicas that share hold a share at least of what their level says (1: the optimizer's
states, 2: gradients, too, 3: weights, too), so that every share is on some replica; only where a
batch ends with a barrier and there is one version of the weights.
"""

from __future__ import annotations

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages, StagePrice
from graphplan.nouns.stages import StageGraph
from graphplan.nouns.training import Training
from graphplan.referee.verdict import Findings

STATES = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2, "adamw": 2}
DIRECTIONLESS = ("sgd", "nesterov")
"""Optimizers whose states do not tell where they went last."""


def judge_sharing(stages: StageGraph, policy: WeightPolicy, findings: Findings) -> None:
    """Levels of ZeRO fit the policy."""
    for s, stage in enumerate(stages.stages):
        if stage.zero and policy.name != "flush":
            findings.add("zero", f"stage {s}", f"shares states, which policy {policy.name} cannot.")


def judge_weights(
    priced: PricedStages,
    stages: StageGraph,
    training: Training,
    policy: WeightPolicy,
    findings: Findings,
) -> None:
    """Fixed bytes against the copies of the weights; other bytes only add to them."""
    if not policy.warmups and policy.name not in ("flush", "local"):
        return  # Another rule asks for the warm-ups.
    if policy.warmups and len(policy.warmups) != len(priced.stages):
        return
    if len(priced.stages) != len(stages.stages):
        return  # Another rule tells.
    wide = 2 if training.mixed else 1  # 32 bits for 16
    for s, stage in enumerate(priced.stages):
        versions, directions = count_versions(policy, s), count_directions(policy, training, s)
        states = STATES[training.optimizer] + training.mixed
        copies = versions + 1 + wide * (states + directions)
        zero, own = stages.stages[s].zero, _count_own(stage)
        if zero:
            shared = wide * states + (zero > 1) + (zero > 2)
            least = shared * -(-own // len(stage.devices)) + (copies - shared) * own
            least += copies * (stage.trained_bytes - own)
            if stage.fixed_bytes < least:
                findings.add(
                    "zero",
                    f"stage {s}",
                    f"{stage.fixed_bytes:,} bytes cannot hold what zero {zero} leaves on each of"
                    f" {len(stage.devices)} replicas: {least:,}.",
                )
        elif stage.fixed_bytes < copies * stage.trained_bytes:
            findings.add(
                "price-weights",
                f"stage {s}",
                f"{stage.fixed_bytes:,} bytes cannot hold {copies} copies of the weights"
                f" ({stage.trained_bytes:,}): {versions} versions, a gradient, {states} states,"
                f" {directions} directions.",
            )


def _count_own(stage: StagePrice) -> int:
    """Bytes of the weights that are shared: those that are not tied."""
    if stage.reduction is None:
        return max(0, stage.trained_bytes - stage.tied_bytes)
    return sum(bucket.bytes for bucket in stage.reduction.buckets)


def count_versions(policy: WeightPolicy, stage: int) -> int:
    """Weight versions in memory at once."""
    if policy.name in ("flush", "local", "naive"):
        return 1
    warmup = policy.warmups[stage]
    by_name = {
        "stash": warmup + 1,
        "vertical-sync": max(policy.warmups) + 1,
        "spectrain2": warmup + 2 if warmup else 1,
    }
    return by_name.get(policy.name, 2)


def count_directions(policy: WeightPolicy, training: Training, stage: int) -> int:
    """Buffers for a direction, at stages that look ahead."""
    ahead = 0
    if policy.name in ("predict", "spectrain1", "spectrain2"):
        ahead = policy.warmups[stage]
    if policy.name == "spectrain1":
        ahead += (max(policy.warmups) - policy.warmups[stage]) // 2
    is_needed = policy.direction == "displacement" or training.optimizer in DIRECTIONLESS
    return 1 if ahead and is_needed else 0
