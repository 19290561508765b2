"""The graph planner: against trying every cut, other planners and the referee."""

from __future__ import annotations

import dataclasses
import itertools
import random
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.model import CostModel
from graphplan.errors import NoFeasiblePlan
from graphplan.nouns.cluster import Cluster, DeviceType, Link, Node
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.dag.decompose import Parallel, decompose_order
from graphplan.partition.dag.fold import fold_nodes, fold_problem, set_riders_aside
from graphplan.partition.dag.order import reduce_edges
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.scene import is_legal_draft
from graphplan.partition.trees.riders import join_riders
from graphplan.planner.contest import Contest
from graphplan.planner.judge import judge_stages
from graphplan.planner.options import SearchOptions
from graphplan.referee import check_stages
from tests.pure import questions
from tests.pure.cuts import find_best_cut, list_drafts, make_model, make_random_problem
from tests.pure.problems import make_cluster, make_problem_by_hand


def ask(problem: Problem, name: str = "graph", *, seed: int = 0) -> questions.Answer:
    """The answer of a planner."""
    return questions.ask(problem, name, seed=seed)


def branches(num_branches: int, length: int, *, num_devices: int, batch_size: int = 32) -> Problem:
    """Equal branches, joined by a trivial node."""
    chains = [
        (b * length + i, b * length + i + 1) for b in range(num_branches) for i in range(length - 1)
    ]
    last = num_branches * length
    ends = [(b * length + length - 1, last) for b in range(num_branches)]
    return make_problem_by_hand(
        [1.0] * last + [1e-6],
        chains + ends,
        cluster=make_cluster(num_devices),
        batch_size=batch_size,
        micro_batch_sizes=(1, 2, 4, 8),
        trained_elements=[10**7] * last + [0],
    )


# -- the best of all cuts --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_as_good_as_the_best_cut_of_a_small_problem(seed: int) -> None:
    """On four nodes and two devices no cut is better."""
    problem = make_random_problem(random.Random(seed), 4, 2, micro_batch_sizes=(2, 8))
    best_s = find_best_cut(problem, partial(judge_stages, CostModel(problem), schedule="1f1b"))
    assert ask(problem).step_s == pytest.approx(best_s, rel=1e-6)


@pytest.mark.parametrize(
    "edges",
    [
        edges
        for count in range(4)
        for edges in itertools.combinations([(0, 1), (0, 2), (1, 2)], count)
    ],
    ids=str,
)
def test_every_dag_of_three_nodes_is_cut_best(edges: tuple[tuple[int, int], ...]) -> None:
    """All eight, on two devices with slow links and weights to reduce."""
    problem = make_problem_by_hand(
        [3.0, 1.0, 2.0],
        list(edges),
        cluster=make_cluster(2, inside=Link(bandwidth_bytes_per_s=2e3, latency_s=0.05)),
        micro_batch_sizes=(2, 8),
        flow_elements=100,
        trained_elements=[1000, 0, 5000],
    )
    best_s = find_best_cut(problem, partial(judge_stages, CostModel(problem), schedule="1f1b"))
    assert ask(problem).step_s == pytest.approx(best_s, rel=1e-6)


def test_auto_is_never_worse_than_other_planners() -> None:
    """Five nodes, three devices: every other planner's answer is at best as good."""
    problem = make_random_problem(random.Random(7), 5, 3)
    ours = ask(problem, "auto")
    for name in ("data-parallel", "equal", "chain", "graphpipe", "graph"):
        assert ours.step_s <= ask(problem, name).step_s * (1 + 1e-9)
    assert ours.bound.step_s <= ours.step_s


def test_branches_run_side_by_side() -> None:
    """Four branches on four devices: no branch waits for another, the join costs nothing."""
    answer = ask(branches(4, 2, num_devices=4))
    compute_s = 32 * 2 * 3.0
    assert answer.step_s == pytest.approx(compute_s, rel=0.05)
    assert max(answer.stages.heights) == 1


def test_branches_that_do_not_divide_the_devices_are_cut_across() -> None:
    """Three branches on two devices: one of them is shared, and both devices are as busy."""
    answer = ask(branches(3, 4, num_devices=2))
    work_s = 32 * 12 * 3.0
    assert answer.step_s <= 1.1 * work_s / 2


@pytest.mark.parametrize("name", ["graph", "graphpipe"])
@pytest.mark.parametrize("seed", range(2))
def test_answers_pass_the_referee(name: str, seed: int) -> None:
    """Every op once, stages convex, the graph of stages acyclic, edges complete."""
    problem = make_random_problem(random.Random(seed), 6, 2)
    answer = ask(problem, name)
    assert check_stages(make_model(problem), answer.stages).is_legal


# -- wishes and limits -----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_answer() -> None:
    """Two searches judge as many drafts and find the same stages."""
    problem = make_random_problem(random.Random(5), 5, 2)
    assert ask(problem, seed=1) == ask(problem, seed=1)


def test_pinned_nodes_run_where_they_are_pinned() -> None:
    """Two pins: each node's stage has exactly that device."""
    problem = make_random_problem(random.Random(3), 5, 3, pins={0: 2, 4: 1})
    answer = ask(problem)
    devices = {op: stage.devices for stage in answer.stages.stages for op in stage.ops}
    assert devices["n0"] == (2,)
    assert devices["n4"] == (1,)


def test_heavy_tensors_stay_inside_a_node() -> None:
    """Two nodes of two devices, slow between them: the flow of 400 kB crosses at the light edge."""
    problem = make_problem_by_hand(
        [1.0] * 4,
        [(0, 1), (1, 2), (2, 3)],
        cluster=make_cluster(
            4, devices_per_node=2, between=Link(bandwidth_bytes_per_s=1e5, latency_s=0.0)
        ),
        batch_size=32,
        micro_batch_sizes=(1,),
        trained_elements=[10**8] * 4,
    )
    flows = tuple(
        msgspec.structs.replace(
            flow, bytes_by_size=tuple(size * (4 if flow.owner == 1 else 4 * 10**5) for size in (1,))
        )
        for flow in problem.flows
    )
    answer = ask(dataclasses.replace(problem, flows=flows))
    node_of = {op: s.devices[0] // 2 for s in answer.stages.stages for op in s.ops}
    assert node_of["n0"] == node_of["n1"]
    assert node_of["n2"] == node_of["n3"]


def test_nodes_of_several_ops_stay_together() -> None:
    """Ops that were grouped are in one stage, whatever the cut."""
    problem = make_random_problem(random.Random(4), 5, 3)
    nodes = tuple(
        msgspec.structs.replace(node, ops=(node.name, f"{node.name}_twin"))
        for node in problem.nodes
    )
    answer = ask(dataclasses.replace(problem, nodes=nodes))
    for stage in answer.stages.stages:
        twins = {op for op in stage.ops if op.endswith("_twin")}
        assert set(stage.ops) - twins == {op.removesuffix("_twin") for op in twins}


def test_memory_asks_for_a_pipeline_with_recomputation() -> None:
    """Weights too large for one device are spread; saved tensors that do not fit are made anew."""
    problem = make_problem_by_hand(
        [1.0] * 8,
        list(itertools.pairwise(range(8))),
        cluster=make_cluster(4, memory_bytes=6_000),
        batch_size=8,
        micro_batch_sizes=(1,),
        trained_elements=[250] * 8,
        saved_bytes=[900] * 8,
    )
    answer = ask(problem)
    assert len(answer.stages.stages) >= 2
    assert any(stage.recompute for stage in answer.stages.stages)


def test_all_stages_recompute_when_they_are_told_to() -> None:
    """Whatever a planner chooses."""
    problem = make_problem_by_hand([1.0] * 4, list(itertools.pairwise(range(4))))
    full = dataclasses.replace(problem, recompute="full")
    for planner in ("graph", "chain", "data-parallel"):
        answer, plain = ask(full, planner), ask(problem, planner)
        assert all(stage.recompute == stage.ops for stage in answer.stages.stages)
        assert answer.step_s > plain.step_s


def test_what_cannot_fit_is_an_error() -> None:
    """A node larger than every device."""
    problem = make_problem_by_hand(
        [1.0, 1.0], [(0, 1)], cluster=make_cluster(2, memory_bytes=100), trained_elements=[10**6, 1]
    )
    with pytest.raises(NoFeasiblePlan):
        ask(problem)


def test_faster_devices_get_more() -> None:
    """One device is three times as fast: it gets more than half of the work."""
    kinds = tuple(
        DeviceType(
            name=name,
            memory_bytes=10**9,
            bandwidth_bytes_per_s=1e9,
            flops_per_s_by_dtype={"float32": 1e12},
            launch_s=0.0,
        )
        for name in ("fast", "slow")
    )
    link = Link(bandwidth_bytes_per_s=1e18, latency_s=0.0)
    cluster = Cluster(
        name="mixed",
        types=kinds,
        nodes=(Node(devices=("slow", "fast"), link=link),),
        link=link,
        usable_memory=1.0,
    )
    problem = make_problem_by_hand(
        [1.0] * 8,
        list(itertools.pairwise(range(8))),
        cluster=cluster,
        batch_size=64,
        micro_batch_sizes=(1,),
        speeds=(3.0, 1.0),
    )
    answer = ask(problem)
    num_ops = dict.fromkeys(range(2), 0)
    for stage in answer.stages.stages:
        for device in stage.devices:
            num_ops[device] += len(stage.ops)
    assert num_ops[1] >= 5
    assert answer.step_s <= 64 * 8 * 3.0 / 4 * 1.1


@pytest.mark.parametrize("name", ["graph", "graphpipe", "chain"])
def test_who_stops_reading_has_the_best_so_far(name: str) -> None:
    """After every draft, what was judged until then is there, and the judge was asked no more."""
    problem = make_random_problem(random.Random(1), 6, 2)
    contest = Contest(CostModel(problem), SearchOptions(planner=name))
    steps = []
    for _ in itertools.islice(contest.ask(name), 200):
        found = contest.merge()
        steps.append(found.step_s)
        assert (found.best is None) == (found.step_s == float("inf"))
        assert found.num_judged >= len(found.step_by_stages)
    assert steps == sorted(steps, reverse=True)
    assert contest.bound.step_s <= steps[-1] < float("inf")


# -- the parts of the search -----------------------------------------------------------------------


@given(st.integers(0, 10**6))
def test_folding_keeps_the_order_of_what_stays(seed: int) -> None:
    """Groups that are ordered after folding were ordered before, or hold something that was."""
    rng = random.Random(seed)
    count = rng.randint(2, 14)
    edges = [(a, b) for b in range(1, count) for a in range(b) if rng.random() < 0.3]
    work = [rng.choice([0.0, 0.0, 0.001, 1.0]) for _ in range(count)]
    folded = fold_nodes(count, edges, work)
    group_of = {node: g for g, group in enumerate(folded.groups) for node in group}
    assert sorted(group_of) == list(range(count))
    assert all(group_of[a] <= group_of[b] for a, b in edges)
    heavy = [node for node in range(count) if work[node] == 1.0]
    assert len({group_of[node] for node in heavy}) == len(heavy)
    before = reduce_edges(count, edges).before
    for a, b in itertools.permutations(heavy, 2):
        now = folded.order.before[group_of[b]] >> group_of[a] & 1
        assert now == before[b] >> a & 1


def test_a_shared_mask_hides_no_branches() -> None:
    """A trivial node that all branches read rides along; the branches are parallel."""
    edges = [(0, 1), (1, 2), (0, 2), (0, 3), (3, 4), (0, 4), (2, 5), (4, 5)]
    work = [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    folded = set_riders_aside(fold_nodes(6, edges, work), work)
    assert folded.riders == ((0,), (5,))
    tree = decompose_order(folded.order)
    assert isinstance(tree, Parallel)
    assert len(tree.children) == 2


@pytest.mark.parametrize("apart", [False, True])
@given(seed=st.integers(0, 10**6))
def test_riders_join_without_closing_a_cycle(apart: bool, seed: int) -> None:
    """Whatever is cut, parts with their riders can be ordered and cover everything."""
    rng = random.Random(seed)
    count = rng.randint(3, 12)
    edges = [(a, b) for b in range(1, count) for a in range(b) if rng.random() < 0.35]
    problem = make_problem_by_hand([rng.choice([0.0, 1.0]) for _ in range(count)], edges)
    folded = fold_problem(problem)
    order = [node for group in folded.groups for node in group]
    cut = rng.randint(1, len(order))
    parts = [
        Part(nodes=tuple(sorted(nodes)), devices=(d,), micro_batch_size=1)
        for d, nodes in enumerate((order[:cut], order[cut:]))
        if nodes
    ]
    made = join_riders(problem, parts, folded.riders, apart=apart)
    graph = assemble_stages(problem, made)
    assert sum(len(stage.ops) for stage in graph.stages) == count


@pytest.mark.parametrize("seed", range(3))
def test_appraisals_are_close_to_evaluations(seed: int) -> None:
    """Of all cuts with one stage a device, nine in ten are appraised within a tenth."""
    problem = make_random_problem(random.Random(seed), 4, 3, micro_batch_sizes=(1, 4))
    cost = CostModel(problem)
    appraiser = Appraiser(cost)
    ratios = []
    for draft, stages in list_drafts(problem):
        assert is_legal_draft(problem, draft)
        appraisal = appraiser.appraise(draft)
        assert appraisal is not None
        if len({part.devices for part in draft}) == len(draft):
            ratios.append(appraisal.step_s / judge_stages(cost, stages, schedule="1f1b"))
    close = sum(0.9 < ratio < 1.1 for ratio in ratios)
    assert close >= 0.9 * len(ratios)
