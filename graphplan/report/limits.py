"""find_limits: sentences that say what keeps a plan from being faster, most telling first."""

from __future__ import annotations

from typing import Literal

from graphplan.nouns.base import Noun
from graphplan.nouns.plan import MixedOp, Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.report.spans import KIND_NAMES
from graphplan.report.stagerows import StageRow
from graphplan.report.units import (
    clean_name,
    format_bytes,
    format_channel,
    format_devices,
    format_seconds,
    format_share,
)
from graphplan.report.usage import UPDATE_KINDS, DeviceUse, Usage

TIGHT_SHARE = 0.9
"""From this share of a limit on, a device or channel is worth a warning."""

BALANCED = 0.02
"""Devices whose work differs by less count as balanced."""
DOMINANT = 0.25
"""Share of the critical path, or of a device's work, from which on one thing is to blame."""
PROVEN = 0.0005
"""A smaller gap is rounding."""
WORTH = 0.01
"""What an asynchronous policy must gain to be mentioned."""

Topic = Literal["compute", "update", "idle", "transfer", "memory", "bound", "batch", "costs"]


class Finding(Noun, frozen=True, kw_only=True):
    """One thing that limits the plan; `share` is drawn as a bar."""

    topic: Topic
    title: str
    text: str
    share: float | None = None
    stage: int | None = None
    device: int | None = None


def find_limits(plan: Plan, usage: Usage, rows: tuple[StageRow, ...]) -> tuple[Finding, ...]:
    """What a reader should look at: critical path, balance, idling, links, memory, bound."""
    if not usage.makespan_s or not usage.devices or not rows:
        return ()
    found = [
        _judge_batch(plan),
        _judge_mixing(plan),
        _judge_path(usage, rows),
        _judge_busiest(usage, plan),
        _judge_updates(usage, plan),
        _judge_idle(usage, splits=plan.model.batch != "none")
        if plan.policy.is_synchronous
        else _judge_stream(plan),
        _judge_channels(usage),
        _judge_memory(rows),
        _judge_bound(plan),
        _judge_offers(plan),
        _judge_costs(plan),
    ]
    told = (each for each in found if each is not None)
    return tuple(sorted(told, key=lambda each: not _is_overfull(each)))


def _is_overfull(finding: Finding) -> bool:
    """What does not fit comes before all that is only slow."""
    return finding.topic == "memory" and (finding.share or 0.0) > 1


def _judge_path(usage: Usage, rows: tuple[StageRow, ...]) -> Finding | None:
    """What the critical path consists of: one stage, many, or the way between them."""
    if not usage.path:
        return None
    stages = [each for each in usage.path if each.stage is not None]
    moving_s = sum(each.seconds for each in usage.path if each.stage is None)
    told = ", ".join(
        f"{each.what} {format_share(each.seconds / usage.makespan_s)}" for each in usage.path[:4]
    )
    more = f", {len(usage.path) - 4} more" if len(usage.path) > 4 else ""
    text = f"It consists of {told}{more}."
    if moving_s >= usage.makespan_s / 2 or not stages:
        share = moving_s / usage.makespan_s
        title = f"Transfers and latency are {format_share(share)} of the critical path"
        return Finding(topic="transfer", title=title, text=text, share=share)
    what, top, share = stages[0].what, stages[0].stage, stages[0].seconds / usage.makespan_s
    title = f"{what[0].upper()}{what[1:]} is {format_share(share)} of the critical path"
    count = len({each.stage for each in stages})
    if share < DOMINANT and count > 1:
        title = f"The critical path runs through {count} stages, none above {format_share(share)}"
    elif top is not None and top < len(rows):
        text = f"{rows[top].title} on {format_devices(rows[top].devices)}. {text}"
    topic: Topic = "compute" if what == f"stage {top}" else "update"
    return Finding(topic=topic, title=title, text=text, share=share, stage=top)


def _judge_busiest(usage: Usage, plan: Plan) -> Finding:
    """The device with the most work against the mean: what better balance could give."""
    busiest = max(usage.devices, key=lambda use: use.busy_s)
    mean_s = sum(use.busy_s for use in usage.devices) / len(usage.devices)
    over = busiest.busy_s / mean_s - 1 if mean_s else 0.0
    stages = plan.prices.stages_by_device[busiest.device]
    title = f"GPU {busiest.device} works {format_share(over)} more than the mean device"
    return Finding(
        topic="compute",
        title="Work is spread evenly over the devices" if over < BALANCED else title,
        text=f"GPU {busiest.device} computes for {format_seconds(busiest.busy_s)} of"
        f" {format_seconds(usage.makespan_s)} (stage {', '.join(map(str, stages))}); the mean"
        f" device for {format_seconds(mean_s)}.",
        share=busiest.busy_s / usage.makespan_s,
        device=busiest.device,
    )


def _judge_updates(usage: Usage, plan: Plan) -> Finding | None:
    """The device that all-reduce and update keep busy most, if they are much of what it does."""
    most = max(usage.devices, key=_updating_share)
    share = _updating_share(most)
    if share < DOMINANT:
        return None
    seconds = {KIND_NAMES[kind]: most.busy_s_by_kind.get(kind, 0.0) for kind in UPDATE_KINDS}
    stages = plan.prices.stages_by_device[most.device]
    remedies = {
        "all-reduce": "Fewer replicas of stages with many parameters, or a larger batch, make it"
        " weigh less.",
        "update": "A larger batch, or the parameters on more devices, make it weigh less.",
    }
    worst = max(seconds, key=seconds.__getitem__)
    told = " and ".join(what for what, spent_s in seconds.items() if spent_s)
    each = ", ".join(f"{what} {format_seconds(s)}" for what, s in seconds.items() if s)
    return Finding(
        topic="update",
        title=f"GPU {most.device} spends {format_share(share)} of its work on {told}",
        text=f"{each[0].upper()}{each[1:]}, of {format_seconds(most.busy_s)} in which it works"
        f" (stage {', '.join(map(str, stages))}). {remedies[worst]}",
        share=share,
        device=most.device,
    )


def _updating_share(use: DeviceUse) -> float:
    spent_s = sum(use.busy_s_by_kind.get(kind, 0.0) for kind in UPDATE_KINDS)
    return spent_s / use.busy_s if use.busy_s else 0.0


def _judge_idle(usage: Usage, *, splits: bool) -> Finding:
    """How the idle time splits into warm-up, waiting and drain."""
    total_s = usage.makespan_s * len(usage.devices)
    idle_s = total_s - sum(use.busy_s for use in usage.devices)
    parts = {
        "warm-up": sum(use.warmup_s for use in usage.devices),
        "waiting between tasks": sum(use.waiting_s for use in usage.devices),
        "drain": sum(use.drain_s for use in usage.devices),
    }
    text = ", ".join(f"{what} {format_share(s / total_s)}" for what, s in parts.items())
    ends_s = parts["warm-up"] + parts["drain"]
    hint = (
        " A larger batch makes warm-up and drain weigh less."
        if splits and ends_s > total_s / 20
        else ""
    )
    return Finding(
        topic="idle",
        title=f"Devices are idle {format_share(max(0.0, idle_s / total_s))} of the step",
        text=f"{text[0].upper()}{text[1:]}.{hint}",
        share=max(0.0, idle_s / total_s),
    )


def _judge_channels(usage: Usage) -> Finding | None:
    if not usage.occupied_s_by_channel:
        return None
    name, occupied_s = max(usage.occupied_s_by_channel.items(), key=lambda item: item[1])
    share = occupied_s / usage.makespan_s
    verdict = (
        "it is a bottleneck: cut where less flows, or put the stages at its ends on one node"
        if share >= TIGHT_SHARE
        else "it is not a bottleneck by itself"
    )
    return Finding(
        topic="transfer",
        title=f"The busiest channel is occupied {format_share(share)} of the step",
        text=f"{format_channel(name)} carries transfers for {format_seconds(occupied_s)};"
        f" {verdict}.",
        share=share,
    )


def _judge_memory(rows: tuple[StageRow, ...]) -> Finding:
    fullest = max(rows, key=lambda row: row.peak_bytes / max(1, row.limit_bytes))
    share = fullest.peak_bytes / max(1, fullest.limit_bytes)
    spare = fullest.limit_bytes - fullest.peak_bytes
    verdict = "to spare" if spare >= 0 else "too much"
    recomputed = sum(row.recompute for row in rows)
    note = f" {recomputed} of {len(rows)} stages recompute activations." if recomputed else ""
    return Finding(
        topic="memory",
        title=f"The fullest device uses {format_share(share)} of its memory",
        text=f"Stage {fullest.stage} on {format_devices(fullest.devices)}:"
        f" {format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.limit_bytes)},"
        f" {format_bytes(abs(spare))} {verdict}.{note}",
        share=share,
        stage=fullest.stage,
    )


def _judge_bound(plan: Plan) -> Finding:
    title = f"No plan can be more than {format_share(plan.gap)} faster"
    return Finding(
        topic="bound",
        title="No plan can be faster" if plan.gap < PROVEN else title,
        text=f"Lower bound {format_seconds(plan.bound.step_s)}: {clean_name(plan.bound.proof)}.",
        share=plan.bound.step_s / plan.prediction.step_s if plan.prediction.step_s else None,
    )


def _judge_stream(plan: Plan) -> Finding:
    """Batches that follow one another: what idles, and how old the weights are."""
    policy, bubble = plan.policy, plan.prediction.bubble
    return Finding(
        topic="idle",
        title=f"Without a drain devices are idle {format_share(bubble)} of the step",
        text=f"Step time and throughput are those of the steady state. {_tell_staleness(policy)}",
        share=bubble,
    )


def _judge_offers(plan: Plan) -> Finding | None:
    """What the policy that gains most without a drain would give, and the others' staleness."""
    step_s = plan.prediction.step_s
    offers = [each for each in plan.offers if each.step_s * (1 + WORTH) < step_s]
    if not offers:
        return None
    best = min(offers, key=lambda offer: (offer.step_s, offer.staleness))
    told = "; ".join(
        f"{each.policy.name} {step_s / each.step_s:.2f}x, up to {each.staleness}"
        f" update{'s' if each.staleness != 1 else ''} stale,"
        f" {format_bytes(max(each.peak_bytes_by_device))} at most"
        for each in offers
    )
    return Finding(
        topic="idle",
        title=f"Without a drain the step would take {format_seconds(best.step_s)}",
        text=f"{told[0].upper()}{told[1:]}. Stale gradients change the training: never chosen"
        f" unasked, use --policy {best.policy.name}.",
        share=best.step_s / step_s,
    )


def _tell_staleness(policy: WeightPolicy) -> str:
    size = policy.accumulate
    update = "every micro-batch" if size == 1 else f"every {size} micro-batches"
    told = (
        f"Policy {policy.name} updates after {update}; gradients are up to {policy.most_stale}"
        f" update{'s' if policy.most_stale != 1 else ''} old."
    )
    depth = max(policy.warmups, default=0) + 1
    if policy.name == "2bw" and size < depth:
        told += f" That is legal, though PipeDream-2BW asks for {depth} micro-batches or more."
    return told


def _judge_batch(plan: Plan) -> Finding | None:
    """Models without a batch dimension: why there are no micro-batches."""
    if plan.model.batch != "none":
        return None
    return Finding(
        topic="batch",
        title="The step cannot be split into micro-batches",
        text="The inputs have no batch dimension, such as one whole graph: every step is a single"
        " micro-batch of all of it. Stages in a row run one after another, so more devices give"
        " memory, and speed only where branches run side by side. To pipeline, train on sampled"
        " sub-graphs with a batch dimension.",
    )


MIXING_TEXTS: dict[str, tuple[str, str]] = {
    "compare": (
        "compares the samples of a batch with each other",
        "a task compares {seen} of {batch} samples",
    ),
    "statistics": (
        "uses statistics of the batch",
        "a task computes them from {seen} of {batch} samples; GroupNorm or LayerNorm in place of"
        " batch norm need none",
    ),
    "order": (
        "picks or orders samples by their place in the batch",
        "a task knows {seen} of {batch} samples",
    ),
    "count": (
        "takes a mean over a data-dependent count",
        "every part of {seen} of {batch} samples divides by its own count, and so weighs as much as"
        " a part with more of them",
    ),
    "sum": (
        "is a sum over samples, not a mean",
        "the loss of a step is the mean over parts of {seen} of {batch} samples: divide the sum by"
        " the batch size",
    ),
}
"""By kind of mixing what an op does, and what a split of the batch makes of it."""


def _judge_mixing(plan: Plan) -> Finding | None:
    """Ops that mix samples in stages that see a part of the batch only."""
    split = [each for each in plan.model.mixing if _count_seen(plan, each)[0] < _batch_size(plan)]
    if not split:
        return None
    told = []
    for kind, (does, changes) in MIXING_TEXTS.items():
        ops = [each for each in split if each.kind == kind]
        if ops:
            seen, count, replicas = min(_count_seen(plan, each) for each in ops)
            more = f" (and {len(ops) - 1} more)" if len(ops) > 1 else ""
            name = clean_name(ops[0].module or ops[0].op)
            parts = f"{count} micro-batch{'es' if count > 1 else ''}"
            parts += f", {replicas} replicas" if replicas > 1 else ""
            change = changes.format(seen=seen, batch=_batch_size(plan))
            told.append(f"{name}{more} {does}: {change} ({parts}).")
    has_replicas = any(_count_seen(plan, each)[2] > 1 for each in split)
    pin = ", with --pin MODULE=DEVICE against replicas" if has_replicas else ""
    remedy = f"To keep the batch whole there: --micro-batch {_batch_size(plan)}{pin}."
    return Finding(
        topic="batch",
        title="Splitting the batch changes what the model computes",
        text=" ".join((*told, remedy)),
    )


def _batch_size(plan: Plan) -> int:
    return plan.training.batch_size


def _count_seen(plan: Plan, mixed: MixedOp) -> tuple[int, int, int]:
    """The samples that a task of an op's stage sees, its micro-batches and its replicas."""
    for s, stage in enumerate(plan.stages.stages):
        if mixed.op in stage.ops:
            replicas, count = len(stage.devices), plan.prices.num_micro_batches(s)
            return max(1, stage.micro_batch_size // replicas), count, replicas
    return _batch_size(plan), 1, 1


def _judge_costs(plan: Plan) -> Finding | None:
    """Learned costs that had to guess."""
    found = plan.provenance.certainty
    if found is None or not found.extrapolated_ops:
        return None
    return Finding(
        topic="costs",
        title=f"{format_share(found.extrapolated_share)} of the op times are extrapolated",
        text=f"{found.extrapolated_ops:,} of {len(plan.model.ops):,} ops lie outside what the"
        " learned cost model was trained on. Profile the model on the device, or add its table to"
        " the training data.",
        share=found.extrapolated_share,
    )
