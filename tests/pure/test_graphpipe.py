"""GraphPipe's planner: its in-flight rule, its dynamic program, its plans."""

from __future__ import annotations

import itertools
import math
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.cost.inflight import count_in_flight, step_in_flight
from graphplan.cost.model import CostModel
from graphplan.nouns.cluster import Link
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.problem import Problem
from graphplan.partition.dag.decompose import decompose_order
from graphplan.partition.dag.fold import fold_problem
from graphplan.partition.trees.minflight import FlightSearch
from graphplan.partition.trees.shape import Shape, build_shape
from graphplan.schedule.inflight import count_in_flight as count_scheduled
from tests.pure import questions
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.strategies import priced_stages


def ask(problem: Problem) -> questions.Answer:
    """The planner's answer."""
    return questions.ask(problem, "graphpipe")


def shape_of(problem: Problem) -> Shape:
    """The decomposition with nothing folded."""
    folded = fold_problem(problem, max_share=0.0, with_riders=False)
    tree = decompose_order(folded.order)
    return build_shape(CostModel(problem), folded, tree, max_items=64, min_share=0.0)


# -- in flight -------------------------------------------------------------------------------------


def test_a_chain_keeps_one_more_in_flight_a_stage() -> None:
    """Equal micro-batches of two: 8, 6, 4, 2 samples."""
    assert count_in_flight([2, 2, 2, 2], [[1], [2], [3], []]) == [8, 6, 4, 2]


def test_the_longest_way_to_a_sink_counts() -> None:
    """A branch of one stage beside a branch of two."""
    assert count_in_flight([1, 1, 1, 1], [[1, 3], [2], [3], []]) == [4, 3, 2, 1]


def test_shrinking_micro_batches_get_slack() -> None:
    """Four samples feed ones: 1 + 4, and 3 more, rounded up to fours."""
    assert count_in_flight([4, 1], [[1], []]) == [8, 1]
    assert count_in_flight([1, 4], [[1], []]) == [8, 4]


@given(priced_stages(max_stages=6, mixed_sizes=True))
def test_the_rule_is_that_of_the_schedules(priced: PricedStages) -> None:
    """What the planner reserves is what 1F1B uses."""
    sizes = [stage.micro_batch_size for stage in priced.stages]
    assert tuple(count_in_flight(sizes, priced.successors)) == count_scheduled(priced, units=sizes)


def test_the_step_over_many_successors_equals_the_count() -> None:
    """One array step for each stage gives the same as the rule on a chain."""
    after, size_after = numpy.zeros(1), numpy.zeros(1)
    for expected in (2, 4, 6):
        after, size_after = step_in_flight(2, after, size_after), numpy.array([2.0])
        assert after[0] == expected


# -- the dynamic program ---------------------------------------------------------------------------


def list_chain_cuts(count: int, num_devices: int) -> list[list[tuple[int, int, int]]]:
    """All ways to cut a chain: (first, last, replicas) of every stage."""
    found = []
    for num_stages in range(1, min(count, num_devices) + 1):
        for cuts in itertools.combinations(range(1, count), num_stages - 1):
            spans = list(itertools.pairwise([0, *cuts, count]))
            found += [
                [(a, b, r) for (a, b), r in zip(spans, replicas, strict=True)]
                for replicas in itertools.product((1, 2, 4), repeat=num_stages)
                if sum(replicas) <= num_devices
            ]
    return found


@pytest.mark.parametrize("seed", range(300))
def test_fewest_in_flight_on_chains_of_all_targets(seed: int) -> None:
    """For a target there are stages exactly if some cut meets it, with no more in flight; weights
    and little memory force cuts, after which a rest may not use all devices that are left."""
    rng = random.Random(seed)
    count, num_devices, size = rng.randint(2, 5), rng.randint(1, 4), 4
    problem = make_problem_by_hand(
        [float(rng.randint(1, 5)) for _ in range(count)],
        list(itertools.pairwise(range(count))),
        cluster=make_cluster(num_devices, memory_bytes=rng.choice([400, 700, 10**6])),
        batch_size=16,
        micro_batch_sizes=(size,),
        saved_bytes=[rng.randint(5, 40) for _ in range(count)],
        trained_elements=[rng.choice((0, 10, 25, 50)) for _ in range(count)],
    )
    cost = CostModel(problem)
    memory = problem.cluster.devices[0].memory_bytes
    search = FlightSearch(cost, shape_of(problem), micro_batch_sizes=[size], memory_bytes=memory)
    total = float(problem.forward_s[0, 0].sum()) * 3
    for target in (total, total / 2, total / 3, total / 5):
        found = search.search(target)
        least = min(
            (
                len(cut)
                for cut in list_chain_cuts(count, num_devices)
                if meets(cost, cut, size, target, memory)
            ),
            default=None,
        )
        assert (found is None) == (least is None)
        if found is not None:
            assert len(found.parts) == least


def meets(
    cost: CostModel, cut: list[tuple[int, int, int]], size: int, target: float, memory: int
) -> bool:
    """Whether every stage of a chain is fast enough and fits with its share in flight."""
    for behind, (first, last, replicas) in enumerate(reversed(cut), start=1):
        nodes = tuple(range(first, last))
        price = cost.price_nodes(nodes, tuple(range(replicas)), size)
        seconds, closing = price.forward_s + price.backward_s, price.reduce_s + price.update_s
        needed = cost.stage_memory(
            nodes, size // replicas, sharing=cost.usual_sharing(replicas)
        ).total(behind)
        if (
            seconds / size + closing / cost.problem.training.batch_size > target * (1 + 1e-12)
            or needed > memory
        ):
            return False
    return True


def test_branches_are_solved_side_by_side() -> None:
    """Two branches of two nodes before a sink: five stages, three in flight at the sources."""
    edges = [(0, 1), (2, 3), (1, 4), (3, 4)]
    problem = make_problem_by_hand([1.0] * 5, edges, cluster=make_cluster(5))
    search = FlightSearch(
        CostModel(problem), shape_of(problem), micro_batch_sizes=[1], memory_bytes=10**9
    )
    found = search.search(3.0)
    assert found is not None
    assert [part.nodes for part in found.parts] == [(0,), (1,), (2,), (3,), (4,)]
    assert search.search(2.9) is None


# -- plans -----------------------------------------------------------------------------------------


def test_branches_get_devices_of_their_own() -> None:
    """Four equal branches on four devices are four stages; the trivial join rides along."""
    edges = [(2 * b, 2 * b + 1) for b in range(4)] + [(2 * b + 1, 8) for b in range(4)]
    slow = Link(bandwidth_bytes_per_s=1e6, latency_s=0.0)
    problem = make_problem_by_hand(
        [1.0] * 8 + [1e-6],
        edges,
        cluster=make_cluster(4, inside=slow),
        batch_size=32,
        trained_elements=[10**7] * 8 + [0],
    )
    answer = ask(problem)
    assert len(answer.stages.stages) == 4
    assert max(answer.stages.heights) == 1
    assert answer.note == ""


def test_modules_that_are_not_series_parallel_are_cut_as_chains() -> None:
    """An N of four nodes is solved, and the note says how."""
    problem = make_problem_by_hand([1.0] * 4, [(0, 2), (1, 2), (1, 3)])
    answer = ask(problem)
    assert answer.step_s < math.inf
    assert "not series-parallel" in answer.note


@given(st.integers(0, 10**6))
def test_parts_cover_every_node_once(seed: int) -> None:
    """Whatever the graph and the target, stages are a partition on at most all devices."""
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    edges = [(a, b) for b in range(1, count) for a in range(b) if rng.random() < 0.35]
    problem = make_problem_by_hand([1.0] * count, edges, cluster=make_cluster(4))
    search = FlightSearch(
        CostModel(problem), shape_of(problem), micro_batch_sizes=[4], memory_bytes=10**9
    )
    for target in (math.inf, 1.5 * count, 3.0):
        found = search.search(target)
        if found is not None:
            nodes = [node for part in found.parts for node in part.nodes]
            assert sorted(nodes) == list(range(count))
            assert sum(len(part.devices) for part in found.parts) <= 4
            assert found.slowest_s <= target
