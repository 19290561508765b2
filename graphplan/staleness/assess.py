"""assess_staleness: all that can be known of a schedule's staleness before the run, as a record."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from graphplan.nouns.base import Noun
from graphplan.nouns.policy import POLICY_NAMES, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.staleness.bounds import BoundTerms, Setting, bound_terms, chain_delay, graph_delay
from graphplan.staleness.delays import Delays, StageDelay, measure_delays
from graphplan.staleness.stability import policy_limit, predicted_limit, stage_limit


class StageStaleness(Noun, frozen=True, kw_only=True):
    """What one stage reads, keeps and tolerates."""

    stage: int
    warmup: int
    versions: int
    """Weight versions that it keeps under the policy."""
    delay: StageDelay | None
    """None for a stage without weights to train."""
    largest_rate: float
    """Largest stable learning rate at the given curvature."""


class PolicyStaleness(Noun, frozen=True, kw_only=True):
    """One row of the comparison of policies on the same stages."""

    policy: str
    staleness: int
    """Own updates behind, at the stalest stage."""
    versions: int
    """Weight versions at the stage that keeps most."""
    largest_rate: float


class ShapeStaleness(Noun, frozen=True, kw_only=True):
    """A bare shape with free messages under stash, an update for every micro-batch."""

    depth: int
    staleness: int
    largest_delay: int
    mean_delay: float
    expected_delay: float
    """n D - n/2."""
    largest_rate: float
    bound: BoundTerms


class Staleness(Noun, frozen=True, kw_only=True):
    """What `graphplan staleness --json` prints."""

    source: str
    plan_policy: str
    """The plan's own policy; the figures are those of `policy`."""
    policy: WeightPolicy
    setting: Setting
    num_stages: int
    """Those with weights to train."""
    stages: tuple[StageStaleness, ...]
    largest_delay: int
    mean_delay: float
    largest_rate: float
    bound: BoundTerms
    policies: tuple[PolicyStaleness, ...]
    graph: ShapeStaleness
    """The plan's graph with free messages."""
    chain: ShapeStaleness
    """The same stages one after the other."""


class Order(NamedTuple):
    """A long asynchronous order of stages."""

    priced: PricedStages
    policy: WeightPolicy
    schedule: Schedule


def assess_staleness(
    order: Order,
    bare: Order,
    *,
    source: str,
    plan_policy: str,
    setting: Setting,
    rate: float | None = None,
) -> Staleness:
    """Versions, delays, limits and bound of an order; `bare` is that of its shape alone."""
    delays = measure_delays(order.priced, order.schedule, order.policy)
    num = len(delays.stages)
    return Staleness(
        source=source,
        plan_policy=plan_policy,
        policy=order.policy,
        setting=setting,
        num_stages=num,
        stages=_describe_stages(order.priced, order.policy, delays, setting),
        largest_delay=delays.largest,
        mean_delay=delays.mean,
        largest_rate=find_rate(order.policy, setting),
        bound=bound_terms(num, delays.largest, setting, rate=rate),
        policies=tuple(compare_policies(order.policy, setting)),
        graph=describe_shape(
            num,
            1 + max(bare.policy.warmups),
            measure_delays(bare.priced, bare.schedule, bare.policy),
            setting,
            rate=rate,
        ),
        chain=describe_shape(num, num, chain_delays(num), setting, rate=rate),
    )


def describe_shape(
    num_stages: int, depth: int, delays: Delays, setting: Setting, *, rate: float | None
) -> ShapeStaleness:
    """A shape of so many stages and such a depth."""
    return ShapeStaleness(
        depth=depth,
        staleness=depth - 1,
        largest_delay=delays.largest,
        mean_delay=delays.mean,
        expected_delay=graph_delay(num_stages, depth),
        largest_rate=predicted_limit(depth - 1, 0, setting.momentum) / setting.curvature,
        bound=bound_terms(num_stages, delays.largest, setting, rate=rate),
    )


def chain_delays(num_stages: int) -> Delays:
    """The largest and the mean delay of a chain, by their closed forms."""
    return Delays(largest=chain_delay(num_stages), mean=(num_stages**2 - 1) / 2, stages=())


def _describe_stages(
    priced: PricedStages, policy: WeightPolicy, delays: Delays, setting: Setting
) -> tuple[StageStaleness, ...]:
    delay_by_stage = {each.stage: each for each in delays.stages}
    return tuple(
        StageStaleness(
            stage=stage,
            warmup=policy.warmups[stage],
            versions=policy.num_versions(stage) if stage in delay_by_stage else 1,
            delay=delay_by_stage.get(stage),
            largest_rate=stage_limit(policy, stage, momentum=setting.momentum) / setting.curvature,
        )
        for stage in range(len(priced.stages))
    )


def compare_policies(policy: WeightPolicy, setting: Setting) -> list[PolicyStaleness]:
    """Every policy with the same warm-ups; 2bw accumulates as many micro-batches as it must."""
    rows = []
    for name in POLICY_NAMES:
        accumulate = policy.accumulate
        if name == "2bw":
            accumulate = max(accumulate, *policy.warmups, 1)
        each = msgspec.structs.replace(policy, name=name, accumulate=accumulate)
        rows.append(
            PolicyStaleness(
                policy=name,
                staleness=each.most_stale,
                versions=max(each.num_versions(stage) for stage in range(len(each.warmups))),
                largest_rate=find_rate(each, setting),
            )
        )
    return rows


def find_rate(policy: WeightPolicy, setting: Setting) -> float:
    """The largest stable learning rate of a policy."""
    return policy_limit(policy, momentum=setting.momentum) / setting.curvature
