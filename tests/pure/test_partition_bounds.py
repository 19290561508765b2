"""Lower bounds: no plan beats them, and those that can be met are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from graphplan.cost.model import CostModel
from graphplan.nouns.cluster import Link
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import StageGraph
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.bounds.costs import collect_costs
from graphplan.partition.bounds.groupbound import bound_starts
from graphplan.partition.bounds.ways import measure_heads
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.zerobubble import build_zero_bubble
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, DIAMOND, ask, list_plans, problems


def measure_best_schedule(problem: Problem, stages: StageGraph) -> float:
    """The least step time of a few very different schedules, memory aside."""
    priced = CostModel(problem).price_stages(stages)
    builders = (build_1f1b, build_gpipe, build_zero_bubble)
    return min(evaluate_schedule(priced, build(priced)).step_s for build in builders)


@settings(max_examples=20, deadline=None)
@given(problems(max_nodes=3, max_devices=2))
def test_no_plan_beats_the_bound(problem: Problem) -> None:
    """Every partition, placement, micro-batch size, with whole and split backwards."""
    bound = bound_step(problem)
    for stages in list_plans(problem):
        assert bound.step_s <= measure_best_schedule(problem, stages) * (1 + 1e-9), bound.proof


def test_the_bound_of_even_work_is_met_by_data_parallel() -> None:
    """Four samples of 3 s on four devices, nothing to reduce: 3 s, and that is the bound."""
    problem = make_problem_by_hand([1], [], batch_size=4, micro_batch_sizes=(1, 2, 4))
    answer = ask(problem, "data-parallel")
    assert answer.step_s == 3.0
    assert answer.gap == pytest.approx(0.0, abs=1e-9)
    assert answer.gap >= 0


def test_one_micro_batch_bounds_by_its_path() -> None:
    """With one sample no device can help: forward 10 s, back 20 s, all along the chain."""
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN, batch_size=1, micro_batch_sizes=(1,))
    bound = bound_step(problem)
    # The weight gradients of all but the first node may run beside the way back.
    assert bound.step_s == pytest.approx(10 + 10 + 1)
    assert "longest path" in bound.proof


def test_reductions_bound_nodes_that_need_many_devices() -> None:
    """8 s alone and 1 s on eight devices, but then 2 (8-1)/8 400 B / 64 B/s of reduction; two are
    best."""
    link = Link(bandwidth_bytes_per_s=64.0, latency_s=0.0)
    problem = make_problem_by_hand(
        [1 / 3],
        [],
        trained_elements=[100],
        cluster=make_cluster(8, devices_per_node=8, inside=link),
    )
    steps = [8 / r + 2 * (r - 1) / r * 400 / 64 for r in (1, 2, 4, 8)]
    assert bound_step(problem).step_s == pytest.approx(min(steps), rel=1e-5)
    assert bound_step(problem, local_steps=10).step_s < min(steps)


@settings(max_examples=15, deadline=None)
@given(problems(max_nodes=2, max_devices=4))
def test_no_plan_with_replicas_beats_the_bound(problem: Problem) -> None:
    """The same with fewer nodes and up to four devices in two nodes."""
    bound = bound_step(problem)
    for stages in list_plans(problem):
        assert bound.step_s <= measure_best_schedule(problem, stages) * (1 + 1e-9), bound.proof


def test_the_work_before_a_node_is_that_of_its_own_micro_batch() -> None:
    """A node that only pays with all eight samples at once waits until all of them have passed the
    eight nodes before it, which take 8 s a sample on the four devices: 16 s at the least."""
    edges = [(u, 8) for u in range(8)]
    problem = make_problem_by_hand([1.0] * 8 + [0.0], edges, overhead_s=0.0)
    costs = collect_costs(problem)
    heads = measure_heads(problem, costs)[:, 8]
    assert heads.tolist() == pytest.approx([2.0, 4.0, 8.0, 16.0])


def test_devices_without_replicas_wait_for_their_first_tensor() -> None:
    """Two nodes in a row whose weights nobody can afford to reduce: the second device idles for the
    first sample, 1 s, and its 4 bytes on a link of 4 B/s, 1 s: (4 (3 + 3) + 2) / 2 s."""
    link = Link(bandwidth_bytes_per_s=4.0, latency_s=0.0)
    problem = make_problem_by_hand(
        [1, 1],
        [(0, 1)],
        batch_size=4,
        micro_batch_sizes=(1, 2, 4),
        trained_elements=[10**3, 10**3],
        cluster=make_cluster(2, inside=link),
    )
    costs = collect_costs(problem)
    alone = {1: costs.work.min(axis=0) + costs.updating}
    heads = measure_heads(problem, costs)
    bound = bound_starts(problem, costs, alone, heads, single_s=0.0, least_s=0.0)
    assert bound.step_s == pytest.approx(13.0, rel=1e-3)


def test_pinned_nodes_bound_by_their_device() -> None:
    """Two of four equal nodes on one device: half of the work runs there."""
    pins = {0: 1, 3: 1}
    problem = make_problem_by_hand([2, 2, 2, 2], DIAMOND, pins=pins, overhead_s=0.0)
    assert bound_step(problem, barrier=False).step_s == pytest.approx(8 * 2 * 6)


def test_a_node_that_fits_nowhere_has_no_bound() -> None:
    """Infinity, and the node is named."""
    problem = make_problem_by_hand(
        [1, 1], [(0, 1)], trained_elements=[1, 1000], cluster=make_cluster(2, memory_bytes=100)
    )
    bound = bound_step(problem)
    assert bound.step_s == math.inf
    assert "n1" in bound.proof
