"""Shared states: what each level of ZeRO takes and saves, and which one a stage gets."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.cost.sums import Sharing
from graphplan.errors import InvalidOption, UnknownName
from graphplan.nouns.cluster import Link
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import ZERO_LEVELS
from graphplan.nouns.training import Training
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.memory import choose_sharing, set_level
from graphplan.planner.options import EXECUTED_LEVELS, SearchOptions
from graphplan.planner.search import search_plan
from graphplan.referee import check_plan
from tests.pure.exported import decoder
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import list_plans, problems
from tests.pure.test_partition_bounds import measure_best_schedule

CHAIN = [(v, v + 1) for v in range(3)]
MODEL_BYTES = 4 * 1000 * 4
"""Four nodes of 1,000 weights of 4 bytes."""


def make_shared(memory_bytes: int = 10**9, **options: Any) -> Problem:
    """Four nodes in a row with weights, on four devices, and a batch of two micro-batches."""
    link = Link(bandwidth_bytes_per_s=1e6, latency_s=0.0, scope="device")
    problem = make_problem_by_hand(
        [1.0] * 4,
        CHAIN,
        batch_size=8,
        micro_batch_sizes=(4, 8),
        trained_elements=[1000] * 4,
        cluster=make_cluster(4, memory_bytes=memory_bytes, inside=link),
        **options,
    )
    training = Training(batch_size=8, optimizer="adam", bucket_bytes=4000)
    return dataclasses.replace(problem, zero_levels=ZERO_LEVELS, training=training)


def price(problem: Problem, zero: int, *, size: int = 4) -> Any:
    """The price of everything on all devices."""
    return CostModel(problem).price_nodes((0, 1, 2, 3), (0, 1, 2, 3), size, zero=ZERO_LEVELS[zero])


def test_bytes_of_each_level() -> None:
    """Adam: weights, gradients and two states; a fourth of what is shared, and two flat buckets,
    with zero 3 two of weights as well."""
    fixed = [price(make_shared(), zero).fixed_bytes for zero in ZERO_LEVELS]
    copies = [(4.0, 2), (2 + 2 / 4, 2), (1 + 3 / 4, 2), (4 / 4, 4)]
    assert fixed == [int(share * MODEL_BYTES) + flat * 4000 for share, flat in copies]
    cost = CostModel(make_shared())
    memory = cost.stage_memory(range(4), 1, sharing=Sharing(1, 4))
    assert (memory.optimizer, memory.gradients) == (MODEL_BYTES // 2, MODEL_BYTES)


def test_seconds_of_each_level() -> None:
    """Zero 1 scatters what zero 0 reduces, in half of the time, updates a fourth and gathers; zero
    2 scatters in every micro-batch, or as zero 1 where there is one; zero 3 gathers for forward and
    backward, and not at all behind the update."""
    none, states, gradients, weights = (price(make_shared(), zero) for zero in ZERO_LEVELS)
    assert states.reducing_s == pytest.approx(none.reducing_s / 2)
    gather_s = states.reducing_s
    assert states.update_s == pytest.approx(none.update_s / 4 + gather_s)
    assert gradients.reduction is None
    assert gradients.backward_s > states.backward_s
    assert gradients.forward_s == states.forward_s
    once = price(make_shared(), 2, size=8)
    assert once.reduction == price(make_shared(), 1, size=8).reduction
    assert weights.forward_s > none.forward_s
    assert weights.update_s == pytest.approx(none.update_s / 4)


@pytest.mark.parametrize(
    ("memory_bytes", "level"), [(10**6, 0), (60_000, 1), (40_000, 2), (35_000, 3)]
)
def test_a_stage_gets_the_fastest_level_that_fits(memory_bytes: int, level: int) -> None:
    """Links are so slow that gathering never pays; memory asks for it, and gets as much of it as
    it needs. Where nothing fits it is the leanest."""
    problem = make_shared(memory_bytes)
    parts = [Part(nodes=(0, 1, 2, 3), devices=(0, 1, 2, 3), micro_batch_size=4)]
    found = choose_sharing(CostModel(problem), assemble_stages(problem, parts))
    assert found.stages[0].zero == level
    alone = [Part(nodes=(0, 1, 2, 3), devices=(0,), micro_batch_size=4)]
    assert choose_sharing(CostModel(problem), assemble_stages(problem, alone)).stages[0].zero == 0


def test_stages_of_a_device_share_its_memory() -> None:
    """Two stages on the same devices: as many of them share as have to."""
    parts = [
        Part(nodes=nodes, devices=(0, 1, 2, 3), micro_batch_size=4) for nodes in ((0, 1), (2, 3))
    ]
    levels = []
    for memory_bytes in (10**6, 64_000, 50_000):
        problem = make_shared(memory_bytes)
        found = choose_sharing(CostModel(problem), assemble_stages(problem, parts))
        levels.append(sorted(stage.zero for stage in found.stages))
    assert levels[0] == [0, 0]
    assert sum(levels[0]) < sum(levels[1]) < sum(levels[2])


@settings(max_examples=10, deadline=None)
@given(problems(max_nodes=2, max_devices=3))
def test_no_plan_that_shares_beats_the_bound(problem: Problem) -> None:
    """Every level for every partition, placement and micro-batch size."""
    shared = dataclasses.replace(problem, zero_levels=ZERO_LEVELS)
    bound = bound_step(shared)
    for stages in list_plans(shared):
        for level in ZERO_LEVELS:
            step_s = measure_best_schedule(shared, set_level(stages, level))
            assert bound.step_s <= step_s * (1 + 1e-9), bound.proof


def test_what_may_be_asked() -> None:
    """The search proposes what the runtime executes; policies that keep versions share nothing."""
    assert SearchOptions().zero_levels == EXECUTED_LEVELS
    assert SearchOptions(zero="3").zero_levels == (3,)
    assert SearchOptions(policy="stash").zero_levels == (0,)
    with pytest.raises(InvalidOption, match="stash keeps weights whole"):
        SearchOptions(policy="stash", zero="1")
    with pytest.raises(UnknownName):
        SearchOptions(zero="4")


@pytest.mark.parametrize("zero", ["1", "2", "3"])
def test_weights_that_a_stage_reads_twice_are_told_apart(zero: str) -> None:
    """The search of a GPT, whose head is its embedding, ended in a verdict of the referee, which
    took all weights for tied."""
    options = SearchOptions(batch_size=1 << 17, planner="data-parallel", baselines=False, zero=zero)
    plan = search_plan(decoder(4, tied=True, width=512), find_cluster(None, gpus=4), options)
    (stage,), (price,) = plan.stages.stages, plan.prices.stages
    assert (len(stage.devices), stage.zero) == (4, int(zero))
    assert 0 < price.tied_bytes < price.trained_bytes
    assert not check_plan(plan).violations
    cheap = msgspec.structs.replace(price, fixed_bytes=price.fixed_bytes // 4)
    cheaper = msgspec.structs.replace(
        plan, prices=msgspec.structs.replace(plan.prices, stages=(cheap,))
    )
    assert "zero" in {each.rule for each in check_plan(cheaper).violations}
