"""Rules for reductions, updates and weight versions: what the policy says happens when.

flush            one U per stage and batch behind all backwards, R in front of it if replicated
asynchronous     one U behind every `accumulate` backwards, R in front of it if replicated
local            one U per stage and batch behind all backwards, R behind it if replicated

Under an asynchronous policy, when stage s runs F of micro-batch t it must have applied
floor(max(0, t - w_s) / accumulate) updates: with one micro-batch an update, its staleness is then
min(t, w_s), whatever the timing.
"""

from __future__ import annotations

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.referee.ground import Ground
from graphplan.referee.lines import Line, Positions
from graphplan.referee.verdict import Findings


def judge_policy(priced: PricedStages, policy: WeightPolicy, findings: Findings) -> None:
    """The policy's own numbers fit the stages."""
    if policy.is_synchronous:
        return
    place = f"policy {policy.name}"
    if len(policy.warmups) != len(priced.stages):
        findings.add(
            "policy", place, f"{len(policy.warmups)} warm-ups for {len(priced.stages)} stages."
        )
        return
    sizes = {stage.micro_batch_size for stage in priced.stages}
    if len(sizes) > 1:
        findings.add("policy", place, f"needs one micro-batch size, not {sorted(sizes)}.")
    if policy.accumulate < 1 or any(
        priced.batch_size // size % policy.accumulate for size in sizes
    ):
        findings.add(
            "policy",
            place,
            f"an update every {policy.accumulate} micro-batches does not divide the batch.",
        )
    for src, dst in priced.edges:
        if policy.warmups[src] < policy.warmups[dst]:
            findings.add(
                "policy",
                f"edge {src} -> {dst}",
                f"warm-up {policy.warmups[src]} of the sender is less than {policy.warmups[dst]} of"
                " the reader, which can deadlock.",
            )
    if policy.name == "2bw" and policy.accumulate < max(policy.warmups, default=0):
        findings.add(
            "policy",
            place,
            f"accumulates {policy.accumulate} micro-batches, fewer than the largest warm-up"
            f" {max(policy.warmups)}.",
        )


def judge_updates(
    ground: Ground, line: Line, stage: int, policy: WeightPolicy, findings: Findings
) -> None:
    """R and U of a stage: all there, none too many, each at its place."""
    if not ground.priced.stages[stage].needs_backward:
        return
    count = ground.counts[stage]
    period = count if policy.is_synchronous else policy.accumulate
    tasks = line.tasks[stage]
    price = ground.priced.stages[stage]
    _judge_numbers(line, stage, "U", tasks["U"], count, period, findings)
    # One replica may still have gradients of tied weights to reduce with other stages.
    if len(price.devices) > 1 or (tasks["R"] and price.reduce_s > 0):
        _judge_numbers(line, stage, "R", tasks["R"], count, period, findings)
    else:
        _judge_numbers(line, stage, "R", tasks["R"], count, 0, findings)
    ends = tasks["B"] | tasks["W"]
    _judge_places(line, stage, (ends, tasks["R"], tasks["U"]), period, policy, findings)
    if not policy.is_synchronous:
        _judge_versions(line, stage, policy, findings)


def _judge_numbers(
    line: Line,
    stage: int,
    kind: str,
    positions: Positions,
    count: int,
    period: int,
    findings: Findings,
) -> None:
    """Task numbers are period - 1, 2 * period - 1, …; period 0 means that there are none."""
    place = f"device {line.device}, stage {stage}"
    right = [m for m in positions if period and (m + 1) % period == 0]
    for m in sorted(positions.keys() - set(right))[:1]:
        why = f"updates come every {period} micro-batches" if period else "nothing to reduce"
        findings.add("update", place, f"{stage}{kind}{m} does not belong here: {why}.")
    wanted = count // period if period else 0
    if len(right) < wanted:
        first = next(k for k in range(1, len(right) + 2) if k * period - 1 not in positions)
        findings.add(
            "update",
            place,
            f"{stage}{kind}{first * period - 1} is missing: {len(right)} of {wanted} are there.",
        )


def _judge_places(
    line: Line,
    stage: int,
    positions: tuple[Positions, Positions, Positions],
    period: int,
    policy: WeightPolicy,
    findings: Findings,
) -> None:
    """R and U stand behind the backwards that they cover, and in the policy's order."""
    ends, reduces, updates = positions
    latest: Positions = {}
    for m, position in ends.items():
        last = (m // period + 1) * period - 1
        latest[last] = max(position, latest.get(last, -1))
    for kind, chosen in (("R", reduces), ("U", updates)):
        for m, position in chosen.items():
            if latest.get(m, -1) > position:
                findings.add(
                    "update",
                    line.place(position, f"{stage}{kind}{m}"),
                    f"comes before a backward that it covers, instruction {latest[m]}.",
                )
    for m in reduces.keys() & updates.keys():
        is_first = reduces[m] < updates[m]
        if is_first == (policy.name == "local"):
            order = "before" if is_first else "behind"
            findings.add(
                "update",
                line.place(reduces[m], f"{stage}R{m}"),
                f"stands {order} {stage}U{m}, which policy {policy.name} does not allow.",
            )


def _judge_versions(line: Line, stage: int, policy: WeightPolicy, findings: Findings) -> None:
    """Walk the stage's forwards and updates in the order of the line."""
    warmup, period = policy.warmups[stage], policy.accumulate
    tasks = line.tasks[stage]
    walk = [(position, "F", m) for m, position in tasks["F"].items()]
    walk += [(position, "U", m) for m, position in tasks["U"].items()]
    version = 0
    for position, kind, m in sorted(walk):
        if kind == "U":
            version += 1
            continue
        wanted = max(0, m - warmup) // period
        if version != wanted:
            findings.add(
                "version",
                line.place(position, f"{stage}F{m}"),
                f"reads version {version} (staleness {m // period - version}); with warm-up"
                f" {warmup} it must read version {wanted} (staleness {m // period - wanted}).",
            )
