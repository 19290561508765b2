"""Plans for large clusters come from problems in miniature, whose judgements are theirs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Literal

import pytest

from graphplan.cost.model import CostModel
from graphplan.nouns.cluster import Cluster, Link
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.drafts.scene import is_legal_draft
from graphplan.planner.judge import Judge
from graphplan.planner.miniature import LEVELS, enlarge_stages, list_miniatures
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import PlanSearch, read_search
from tests.pure.problems import make_cluster, make_problem_by_hand

Scope = Literal["pair", "device", "node"]
CHAIN = [(i, i + 1) for i in range(11)]


def make_large(
    num_devices: int = 128,
    *,
    scope: Scope = "device",
    per_node: int = 4,
    micro_batch_sizes: Sequence[int] = (),
) -> Problem:
    """A chain of twelve nodes for very many devices; nothing in it is free."""
    cluster = make_cluster(
        num_devices,
        devices_per_node=per_node,
        inside=Link(bandwidth_bytes_per_s=3e9, latency_s=1e-6, scope=scope),
        between=Link(bandwidth_bytes_per_s=1e9, latency_s=5e-6, scope=scope),
    )
    return make_problem_by_hand(
        [1e-3 * (1 + i % 3) for i in range(12)],
        CHAIN,
        cluster=cluster,
        batch_size=2 * num_devices,
        micro_batch_sizes=micro_batch_sizes
        or [1 << k for k in range((2 * num_devices).bit_length())],
        flow_elements=10_000,
        trained_elements=[100_000 * (1 + i % 4) for i in range(12)],
        saved_bytes=[1000] * 12,
    )


def draw_draft(problem: Problem, rng: random.Random) -> tuple[Part, ...]:
    """A pipeline with unequal replicas somewhere on the cluster."""
    while True:
        depth = rng.randint(1, 5)
        cuts = [0, *sorted(rng.sample(range(1, 12), depth - 1)), 12]
        size = rng.choice(problem.micro_batch_sizes)
        devices = rng.sample(range(len(problem.cluster.devices)), 2**5)
        draft = []
        for first, last in itertools.pairwise(cuts):
            width = rng.choice([1, 2, 4])
            own, devices = devices[:width], devices[width:]
            draft.append(
                Part(
                    nodes=tuple(range(first, last)),
                    devices=tuple(sorted(own)),
                    micro_batch_size=size,
                )
            )
        if is_legal_draft(problem, draft):
            return tuple(draft)


@pytest.mark.parametrize("scope", ["pair", "device", "node"])
@pytest.mark.parametrize("per_node", [2, 4, 8])
def test_a_miniature_judges_as_the_large_problem_does(scope: Scope, per_node: int) -> None:
    """Apart and adjacent, on links of every scope: the enlarged draft takes exactly as long, but
    for neighbours that take turns at one port."""
    problem = make_large(256, scope=scope, per_node=per_node)
    whole, rng = Judge(CostModel(problem)), random.Random(7)
    minis = next(list_miniatures(problem))
    assert [mini.miniature and mini.miniature.adjacent for mini in minis] == [False, True]
    for mini in minis:
        assert mini.miniature is not None and mini.miniature.times == 4
        judge = Judge(CostModel(mini))
        error = 0.02 if scope == "node" and mini.miniature.adjacent else 1e-9
        for _ in range(6):
            stages = assemble_stages(mini, draw_draft(mini, rng))
            enlarged = enlarge_stages(mini, stages)
            assert judge.judge(stages) == pytest.approx(whole.judge(enlarged), rel=error)


def test_what_devices_stand_for() -> None:
    """The picture of the docstring."""
    apart, adjacent = next(list_miniatures(make_large(128)))
    assert apart.miniature is not None and adjacent.miniature is not None
    assert apart.miniature.enlarge((1, 2)) == (1, 2, 65, 66)
    assert adjacent.miniature.enlarge((1, 2)) == (2, 3, 4, 5)
    assert apart.training.batch_size == adjacent.training.batch_size == 128
    assert [len(each.cluster.nodes) for each in (apart, adjacent)] == [16, 32]


def test_problems_that_are_no_repetition_are_planned_as_they_are() -> None:
    """Few devices, pins, unequal nodes, or a batch that cannot be divided."""
    uneven = make_cluster(126, devices_per_node=4)
    for problem in (
        make_large(LEVELS[0]),
        make_problem_by_hand([1.0] * 12, CHAIN, cluster=uneven, batch_size=8),
        make_problem_by_hand([1.0] * 12, CHAIN, cluster=make_cluster(128), pins={0: 1}),
        make_problem_by_hand(
            [1.0] * 12, CHAIN, cluster=make_cluster(128), batch_size=7, micro_batch_sizes=[1, 7]
        ),
    ):
        assert list(list_miniatures(problem)) == [(problem,)]


def test_a_large_search_plans_for_all_devices() -> None:
    """The plan of a miniature runs on the large cluster, at what was promised."""
    problem = make_large(128, micro_batch_sizes=(64, 128))
    options = SearchOptions(planner="graph", effort=0.1, baselines=False)
    search = PlanSearch(CostModel(problem), options)
    ready = search.finish(read_search(search.run(), None))
    used = {device for stage in search.stages.stages for device in stage.devices}
    assert len(ready.prediction.peak_bytes_by_device) == 128 and len(used) > LEVELS[0]
    assert len(search.contest.cost.problem.cluster.devices) == LEVELS[0]
    assert search.bound.step_s <= ready.prediction.step_s
    assert ready.prediction.step_s <= search.contest.merge().step_s * 1.001


def test_larger_miniatures_follow_where_nothing_fits() -> None:
    """The smallest one first, the problem itself last."""
    problem = make_large(1024, micro_batch_sizes=(1024, 2048))
    levels = [[len(each.cluster.devices) for each in level] for level in list_miniatures(problem)]
    assert levels == [[64, 64], [256, 256], [1024]]


def test_clusters_of_the_library_have_miniatures() -> None:
    """512 and 4,096 devices in nodes of eight."""
    for num in (512, 4096):
        cluster: Cluster = make_cluster(num, devices_per_node=8)
        problem = make_problem_by_hand(
            [1.0] * 12, CHAIN, cluster=cluster, batch_size=num, micro_batch_sizes=[num // 2, num]
        )
        assert [len(p.cluster.devices) for p in next(list_miniatures(problem))] == [64, 64]
