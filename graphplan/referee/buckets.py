"""Rule `price-buckets`: every gradient of a replicated stage is reduced once, when it is complete.

A bucket is complete at some moment of the last backward that adds to it, none before the one that
is reduced before it; together they hold the stage's own gradients. What is left of `trained_bytes`
are weights that other stages hold, too, which R reduces by itself, in `reduce_s`.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages, StagePrice
from graphplan.nouns.stages import StageGraph
from graphplan.nouns.task import Instruction, Task
from graphplan.referee.verdict import Findings

TOLERANCE = 1e-9


def judge_buckets(priced: PricedStages, findings: Findings) -> None:
    """The buckets of every stage by themselves."""
    for s, stage in enumerate(priced.stages):
        if stage.reduction is None:
            continue
        if len(stage.devices) == 1 or not stage.needs_backward:
            findings.add("price-buckets", f"stage {s}", "has buckets, but nothing to reduce.")
        law = stage.reduction
        if not 0 <= min(law.slows, law.slowed) <= max(law.slows, law.slowed) < 1e6:
            findings.add("price-values", f"stage {s}", "its buckets slow down by what cannot be.")
        _judge_order(s, stage, findings)
        held = sum(bucket.bytes for bucket in law.buckets)
        if held > stage.trained_bytes or (held < stage.trained_bytes and not stage.reduce_s):
            findings.add(
                "price-buckets",
                f"stage {s}",
                f"its buckets hold {held:,} bytes of gradients, its weights have"
                f" {stage.trained_bytes:,}.",
            )


def _judge_order(s: int, stage: StagePrice, findings: Findings) -> None:
    assert stage.reduction is not None
    before = (0.0, 0.0)
    for k, bucket in enumerate(stage.reduction.buckets):
        if min(bucket.bytes, bucket.seconds) < 0:
            findings.add("price-values", f"stage {s}, bucket {k}", "has less than nothing.")
        now = (bucket.backward_s, bucket.weight_grad_s)
        ends = (stage.backward_s, stage.weight_grad_s)
        for kind, at, last, end in zip("BW", now, before, ends, strict=True):
            if not last * (1 - TOLERANCE) <= at <= end * (1 + TOLERANCE):
                findings.add(
                    "price-buckets",
                    f"stage {s}, bucket {k}",
                    f"is complete {at} s after the start of {kind}, which takes {end} s; the one"
                    f" before it after {last} s.",
                )
        before = now


def judge_presence(
    priced: PricedStages, stages: StageGraph, policy: WeightPolicy, findings: Findings
) -> None:
    """Replicas reduce their gradients; under policy local they average their weights instead, and
    with zero 2 and 3 the backward of every micro-batch scatters them in its own time."""
    zeros = [stage.zero for stage in stages.stages] + [0] * len(priced.stages)
    for s, stage in enumerate(priced.stages):
        is_replicated = len(stage.devices) > 1 and stage.needs_backward and stage.trained_bytes > 0
        if policy.name == "local" and stage.reduction is not None:
            findings.add("price-buckets", f"stage {s}", "reduces what policy local does not.")
        elif zeros[s] > 1:
            continue
        elif policy.name != "local" and is_replicated and not (stage.reduction or stage.reduce_s):
            findings.add("price-buckets", f"stage {s}", "its gradients are never reduced.")


def measure_work(priced: PricedStages, line: Sequence[Instruction]) -> float:
    """Seconds of a device that waits for nothing but its own buckets, with nothing beside them."""
    now, begun = 0.0, dict.fromkeys(range(len(priced.stages)), (0.0, "B"))
    for task in line:
        if not isinstance(task, Task):
            continue
        stage = priced.stages[task.stage]
        if task.kind in "BW":
            begun[task.stage] = (now, task.kind)
        if task.kind == "R" and stage.reduction is not None:
            start, kind = begun[task.stage]
            free = 0.0
            for bucket in stage.reduction.buckets:
                ready = bucket.weight_grad_s if kind == "W" else bucket.backward_s
                free = max(free, start + ready) + bucket.seconds
            now = max(now, free)
        now += {
            "F": stage.forward_s,
            "B": stage.backward_s,
            "I": stage.input_grad_s,
            "W": stage.weight_grad_s,
            "R": stage.reduce_s,
            "U": stage.update_s,
        }[task.kind]
    return now
