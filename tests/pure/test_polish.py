"""Polishing drafts by CP-SAT: against trying every placement, the referee, pins and the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from graphplan.cost.model import CostModel
from graphplan.errors import CutError
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.dag.work import measure_times
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.polish import polish_draft
from graphplan.partition.drafts.retouch import sort_draft
from graphplan.partition.drafts.scene import Draft, is_legal_draft
from graphplan.partition.drafts.window import open_window
from graphplan.planner.evaluate import make_evaluator
from graphplan.referee import check_stages
from tests.pure.cuts import make_model, make_random_problem
from tests.pure.problems import make_cluster, make_problem_by_hand

GROUPS = [((0,), (1,)), ((0, 1), (2,)), ((0,), (1,), (0,)), ((0,), (1, 2), (3,))]
"""Devices of the stages: alone, unequally replicated, sharing a device."""


def polish(problem: Problem, draft: Draft) -> tuple[Draft, float, float]:
    """The polished draft, its step and that of the draft."""
    cost = CostModel(problem)
    evaluate = make_evaluator(cost)

    def measure(each: Draft) -> float:
        return evaluate(assemble_stages(problem, each))

    work = measure_times(problem).work
    found, step_s = polish_draft(Appraiser(cost), work, draft, measure, seconds_left=lambda: 1e6)
    return found, step_s, measure(draft)


def cut_evenly(problem: Problem, groups: tuple[tuple[int, ...], ...], size: int) -> Draft:
    """The nodes in their order, as many for every stage."""
    num, count = problem.num_nodes, len(groups)
    return tuple(
        Part(
            nodes=tuple(range(p * num // count, (p + 1) * num // count)),
            devices=devices,
            micro_batch_size=size,
        )
        for p, devices in enumerate(groups)
    )


def list_placements(problem: Problem, draft: Draft) -> Iterator[Draft]:
    """Every way to put the nodes into the parts of the draft."""
    for labels in itertools.product(range(len(draft)), repeat=problem.num_nodes):
        parts = tuple(
            Part(
                nodes=tuple(v for v, label in enumerate(labels) if label == p),
                devices=part.devices,
                micro_batch_size=part.micro_batch_size,
            )
            for p, part in enumerate(draft)
            if p in labels
        )
        if is_legal_draft(problem, parts):
            yield parts


def find_best(problem: Problem, draft: Draft) -> float:
    """The best step of all placements."""
    evaluate, best_s = make_evaluator(CostModel(problem)), float("inf")
    for parts in list_placements(problem, draft):
        try:
            best_s = min(best_s, evaluate(assemble_stages(problem, parts)))
        except CutError:
            continue
    return best_s


@pytest.mark.parametrize("seed", range(6))
def test_two_stages_are_cut_nearly_as_well_as_can_be(seed: int) -> None:
    """The best of all placements of eight nodes on the same devices is at most 3% better."""
    problem = make_random_problem(random.Random(seed), 8, 2)
    draft = cut_evenly(problem, ((0,), (1,)), 2)
    _, step_s, before_s = polish(problem, draft)
    assert step_s <= before_s
    assert step_s <= 1.03 * find_best(problem, draft)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_polished_drafts_are_legal_and_no_worse(
    groups: tuple[tuple[int, ...], ...], seed: int
) -> None:
    """Shared devices and unequal replicas stay as they were; the referee accepts the stages."""
    problem = make_random_problem(random.Random(seed), 12, 4)
    found, step_s, before_s = polish(problem, cut_evenly(problem, groups, 4))
    assert step_s <= before_s
    assert is_legal_draft(problem, found)
    assert {part.devices for part in found} <= set(groups)
    stages = assemble_stages(problem, found)
    assert check_stages(make_model(problem), stages).is_legal


def test_a_lopsided_draft_is_balanced() -> None:
    """A chain of twelve equal nodes, eleven of them on one of two devices."""
    problem = make_problem_by_hand([1.0] * 12, list(itertools.pairwise(range(12))))
    draft = tuple(
        Part(nodes=nodes, devices=(p,), micro_batch_size=1)
        for p, nodes in enumerate((tuple(range(11)), (11,)))
    )
    found, _, _ = polish(problem, draft)
    assert sorted(len(part.nodes) for part in found) == [6, 6]


def test_pinned_nodes_stay() -> None:
    """Their part and its device do not change, however unbalanced it is."""
    problem = make_problem_by_hand(
        [1.0] * 8, list(itertools.pairwise(range(8))), pins={0: 0, 5: 0, 7: 1}
    )
    draft = (
        Part(nodes=tuple(range(7)), devices=(0,), micro_batch_size=1),
        Part(nodes=(7,), devices=(1,), micro_batch_size=1),
    )
    found, _, _ = polish(problem, draft)
    assert {0, 5} <= set(found[0].nodes)
    assert is_legal_draft(problem, found)


def test_memory_is_respected() -> None:
    """Balance asks for both heavy nodes on one device, whose memory holds only one of them."""

    def pose(memory_bytes: int) -> Problem:
        return make_problem_by_hand(
            [1.0, 1.0, 1.0, 0.1, 0.1, 0.1],
            list(itertools.pairwise(range(6))),
            cluster=make_cluster(2, memory_bytes=memory_bytes),
            trained_elements=[4000, 4000, 10, 10, 10, 10],
        )

    draft = tuple(
        Part(nodes=nodes, devices=(p,), micro_batch_size=1)
        for p, nodes in enumerate(((0,), (1, 2, 3, 4, 5)))
    )
    needed = CostModel(pose(10**9)).stage_memory(draft[1].nodes, 1).total(2)
    _, roomy_s, before_s = polish(pose(2 * needed), draft)
    _, tight_s, _ = polish(pose(int(1.2 * needed)), draft)
    assert roomy_s < 0.95 * before_s
    assert roomy_s < tight_s <= before_s


def test_the_same_seed_polishes_alike() -> None:
    """Counted work, one worker: twice the same draft."""
    problem = make_random_problem(random.Random(3), 14, 4)
    draft = cut_evenly(problem, ((0,), (1,), (2,), (3,)), 2)
    assert polish(problem, draft) == polish(problem, draft)


@pytest.mark.parametrize("seed", range(5))
def test_windows_keep_to_the_limit_and_hold_the_draft(seed: int) -> None:
    """Bounds never fall along edges, so that a legal placement is always left."""
    problem = make_random_problem(random.Random(seed), 20, 4)
    draft = sort_draft(problem, cut_evenly(problem, ((0,), (1,), (2,), (3,)), 1))
    work = measure_times(problem).work
    window = open_window(problem, work, draft, max_choices=9, reach=2)
    choices = [last - first for first, last in zip(window.first, window.last, strict=True)]
    assert 0 < sum(choices) <= 9
    for p, part in enumerate(draft):
        assert all(window.first[v] <= p <= window.last[v] for v in part.nodes)
    for src, dst in problem.edges:
        assert window.first[src] <= window.first[dst]
        assert window.last[src] <= window.last[dst]
