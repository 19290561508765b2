"""Streaming: stage graphs under the asynchronous weight policies, which never drain.

Their step time is that of the steady state: what one more batch takes when batches follow one
another, played at two lengths, with the memory of all weight versions and of w_s + 1 micro-batches
in flight. Only where stages share devices, whose steady order takes a solver, a search goes by the
load of the busiest device or channel, which that order nearly always meets.
"""

from __future__ import annotations

import dataclasses
import math

import msgspec

from graphplan.cost.model import CostModel
from graphplan.errors import GraphplanError, InvalidOption, NoFeasiblePlan
from graphplan.nouns.plan import PolicyOffer, Prediction
from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule
from graphplan.nouns.stages import StageGraph
from graphplan.planner.loads import measure_channels, measure_load
from graphplan.planner.options import SearchOptions
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.modulo import Period, repeat_period, solve_period
from graphplan.schedule.shop import make_shop
from graphplan.schedule.steady import (
    make_policy,
    measure_period,
    order_steady,
    plan_steady,
    read_warmups,
)
from graphplan.simulate import predict_step

ROUNDS = 3
"""How often warm-ups and the weight versions that they need are adjusted to each other."""
OFFERED: tuple[PolicyName, ...] = ("2bw", "predict", "stash")
"""Policies that a plan with flush is compared with."""


def judge_stream(cost: CostModel, stages: StageGraph, options: SearchOptions) -> float:
    """Seconds of a batch in the steady state; infinity when it does not fit or is not legal."""
    bare = cost.price_stages(stages)
    sizes = {stage.micro_batch_size for stage in bare.stages}
    count = bare.num_micro_batches(0)
    if len(sizes) > 1 or count <= max(bare.heights):
        return math.inf
    policy = WeightPolicy(
        name=options.policy_name,
        warmups=bare.heights,
        accumulate=options.count_update(count),
        direction=options.direction_form,
    )
    priced = cost.price_stages(stages, policy)
    shares = []
    for device, hosted in enumerate(priced.stages_by_device):
        own = [priced.stages[s] for s in hosted]
        held = sum(each.fixed_bytes for each in own)
        held += sum(priced.stages[s].saved_bytes * (policy.warmups[s] + 1) for s in hosted)
        held += max((each.workspace_bytes for each in own), default=0)
        shares.append(held / max(1, priced.memory_bytes_by_device[device]))
    if max(shares) > 1:
        return math.inf
    if options.objective == "memory":
        return max(shares)
    if not _is_shared(priced):
        return count * measure_period(priced, policy.warmups, accumulate=policy.accumulate)
    return max(
        count * measure_load(priced, policy.accumulate),
        priced.batch_size * measure_channels(priced),
    )


def plan_stream(
    cost: CostModel, stages: StageGraph, options: SearchOptions, *, effort: float
) -> tuple[PricedStages, WeightPolicy, Schedule]:
    """Warm-ups, weight versions and order that suit each other and the memory."""
    policy = WeightPolicy(warmups=(0,) * len(stages.stages))
    for _ in range(ROUNDS):
        priced = cost.price_stages(stages, policy)
        found, schedule = plan_steady(
            priced,
            options.policy_name,
            accumulate=options.count_update(priced.num_micro_batches(0)),
            effort=effort / ROUNDS,
            seed=options.seed,
        )
        found = msgspec.structs.replace(found, direction=options.direction_form)
        if found == policy:
            break
        policy = found
    priced = cost.price_stages(stages, policy)
    require_room(priced, schedule, policy)
    return priced, policy, schedule


def require_room(priced: PricedStages, schedule: Schedule, policy: WeightPolicy) -> None:
    """Refuse what does not fit, or never fills."""
    count = priced.num_micro_batches(0)
    if count <= max(policy.warmups):
        size = priced.stages[0].micro_batch_size
        raise InvalidOption(
            f"A batch of {count} micro-batches never fills a pipeline with"
            f" {max(policy.warmups)} warm-ups.",
            remedy=f"Use --batch {size * (max(policy.warmups) + 1)} or more, or smaller"
            " micro-batches.",
        )
    found = evaluate_schedule(priced, schedule, policy)
    if not found.fits:
        peaks = zip(found.peak_bytes_by_device, priced.memory_bytes_by_device, strict=True)
        device, (peak, room) = max(enumerate(peaks), key=lambda each: each[1][0] - each[1][1])
        raise NoFeasiblePlan(
            f"Policy {policy.name} needs {peak:,} bytes on device {device}, which has {room:,}.",
            remedy="Use policy 2bw or flush, smaller micro-batches, or recompute activations.",
        )


def predict_stream(
    priced: PricedStages,
    policy: WeightPolicy,
    program: Program,
    *,
    seed: int = 0,
    period: Period | None = None,
) -> Prediction:
    """Step time, throughput and bubble of the steady state; peaks are those of the program.

    `period` is the steady state of stages that share devices, found anew if it is not given.
    """
    once = predict_step(priced, program)
    count = priced.num_micro_batches(0)
    if period is None and _is_shared(priced):
        period = solve_period(
            make_shop(priced), allow_split=False, accumulate=policy.accumulate, seed=seed
        )
    num = max(1, -(-max(40, 4 * (max(policy.warmups) + 2)) // count))
    ends = [
        evaluate_schedule(longer, order, policy).step_s
        for longer, order in (_lengthen(priced, policy, n, period) for n in (num, 2 * num))
    ]
    step_s = (ends[1] - ends[0]) / num
    return Prediction(
        step_s=step_s,
        samples_per_s=priced.batch_size / step_s if step_s else 0.0,
        bubble=max(0.0, 1 - (1 - once.bubble) * once.step_s / step_s) if step_s else 0.0,
        peak_bytes_by_device=once.peak_bytes_by_device,
    )


def _is_shared(priced: PricedStages) -> bool:
    """Whether a device has several stages, whose steady order takes a solver."""
    return any(len(hosted) > 1 for hosted in priced.stages_by_device)


def _lengthen(
    priced: PricedStages, policy: WeightPolicy, num_batches: int, period: Period | None
) -> tuple[PricedStages, Schedule]:
    """Several batches that follow one another, as one."""
    longer = msgspec.structs.replace(priced, batch_size=num_batches * priced.batch_size)
    if period is not None:
        return longer, repeat_period(longer, period)
    return longer, order_steady(longer, policy.warmups)


def offer_policies(
    cost: CostModel, stages: StageGraph, options: SearchOptions, *, effort: float
) -> tuple[PolicyOffer, ...]:
    """What the asynchronous policies would give for the same stages, and what they would cost.

    The same batch for each update as with flush, so that nothing but staleness differs. Stages that
    share devices have one steady order for all policies: that with the memory of one version.
    """
    offers: list[PolicyOffer] = []
    if not stages.edges:
        return ()
    count = cost.problem.training.batch_size // stages.stages[0].micro_batch_size
    bare = cost.price_stages(stages)
    period = None
    if _is_shared(bare):
        try:
            period = solve_period(
                make_shop(bare),
                allow_split=False,
                accumulate=count,
                effort=effort,
                seed=options.seed,
            )
        except GraphplanError:
            return ()
    for name in OFFERED:
        asked = dataclasses.replace(options.with_policy(name), accumulate=count)
        try:
            offers.append(_offer(cost, stages, asked, period, effort=effort))
        except GraphplanError:
            continue
    return tuple(offers)


def _offer(
    cost: CostModel,
    stages: StageGraph,
    options: SearchOptions,
    period: Period | None,
    *,
    effort: float,
) -> PolicyOffer:
    if period is None:
        priced, policy, schedule = plan_stream(cost, stages, options, effort=effort)
    else:
        bare = cost.price_stages(stages)
        schedule = repeat_period(bare, period)
        warmups = read_warmups(bare, schedule)
        policy = make_policy(bare, options.policy_name, warmups, options.accumulate)
        policy = msgspec.structs.replace(policy, direction=options.direction_form)
        priced = cost.price_stages(stages, policy)
        require_room(priced, schedule, policy)
    program = lower_schedule(priced, schedule, policy)
    found = predict_stream(priced, policy, program, seed=options.seed, period=period)
    return PolicyOffer(
        policy=policy,
        step_s=found.step_s,
        staleness=policy.most_stale,
        peak_bytes_by_device=found.peak_bytes_by_device,
    )
