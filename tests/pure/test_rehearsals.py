"""Rehearsals, the planner that goes by them, and what may change a plan or only help it."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest

from graphplan.cost.model import CostModel
from graphplan.nouns.cluster import Cluster, Link
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.improve import (
    LEAST_JUDGED,
    MOST_JUDGED,
    choose_finalists,
    count_judgements,
)
from graphplan.planner.collect import schedule_stages
from graphplan.planner.judge import MAX_PLAYED_TASKS, judge_stages
from graphplan.planner.options import SearchOptions
from graphplan.referee import check_stages
from graphplan.schedule.auto import count_tasks
from graphplan.schedule.bound import bound_schedule
from tests.pure import questions
from tests.pure.cuts import (
    find_best_cut,
    list_cuts,
    list_drafts,
    make_model,
    make_random_problem,
)
from tests.pure.problems import make_cluster, make_problem_by_hand

PLANNERS = ("data-parallel", "equal", "chain", "2bw", "downset", "graphpipe", "graph")


def ask(problem: Problem, name: str = "graph", *, searched: bool = True) -> questions.Answer:
    """The answer of a planner."""
    return questions.ask(problem, name, searched=searched)


# -- rehearsals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_rehearsals_lie_between_the_bound_and_1f1b(seed: int) -> None:
    """Of all cuts; the plain order is among those that are rehearsed."""
    problem = make_random_problem(random.Random(seed), 4, 2, micro_batch_sizes=(2, 8))
    cost = CostModel(problem)
    for stages in list_cuts(problem):
        rehearsed_s = judge_stages(cost, stages)
        bound_s = bound_schedule(cost.price_stages(stages)).makespan_s
        assert (
            bound_s * (1 - 1e-9)
            <= rehearsed_s
            <= judge_stages(cost, stages, schedule="1f1b") * (1 + 2e-3)
        )


@pytest.mark.parametrize("seed", range(3))
def test_rehearsals_are_close_to_schedules(seed: int) -> None:
    """What a search of the schedule finds is at most 4% better for nine cuts in ten."""
    problem = make_random_problem(random.Random(seed), 4, 2, micro_batch_sizes=(2,))
    cost = CostModel(problem)
    ratios = [
        judge_stages(cost, stages)
        / schedule_stages(cost, stages, SearchOptions(), effort=0.05).prediction.step_s
        for stages in list(list_cuts(problem))[::4]
    ]
    assert sum(ratio < 1.04 for ratio in ratios) >= 0.9 * len(ratios)


def test_long_batches_are_rehearsed_in_part() -> None:
    """Two stages of 1 s forward and 2 s back: 3 s for each of very many samples, and the way."""
    problem = make_problem_by_hand(
        [1.0, 1.0], [(0, 1)], cluster=make_cluster(2), batch_size=4096, micro_batch_sizes=(1,)
    )
    parts = [Part(nodes=(i,), devices=(i,), micro_batch_size=1) for i in range(2)]
    cost, stages = CostModel(problem), assemble_stages(problem, parts)
    assert count_tasks(cost.price_stages(stages), allow_split=True) > MAX_PLAYED_TASKS
    assert judge_stages(cost, stages) == pytest.approx(3 * 4096, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_relaxed_appraisals_are_close_to_rehearsals(seed: int) -> None:
    """Of all cuts with one stage a device, nine in ten are appraised within a tenth."""
    problem = make_random_problem(random.Random(seed), 4, 3, micro_batch_sizes=(1, 4))
    cost = CostModel(problem)
    plain, relaxed = Appraiser(cost), Appraiser(cost, relaxed=True)
    ratios = []
    for draft, stages in list_drafts(problem):
        first, second = plain.appraise(draft), relaxed.appraise(draft)
        assert first is not None
        assert second is not None
        assert second.step_s <= first.step_s * (1 + 1e-9)
        if len({part.devices for part in draft}) == len(draft):
            ratios.append(second.step_s / judge_stages(cost, stages))
    assert sum(0.9 < ratio < 1.1 for ratio in ratios) >= 0.9 * len(ratios)


# -- the planner that goes by them -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_as_good_as_the_best_rehearsed_cut_of_a_small_problem(seed: int) -> None:
    """On four nodes and two devices no cut is rehearsed better; the referee accepts the answer."""
    problem = make_random_problem(random.Random(seed), 4, 2, micro_batch_sizes=(2, 8))
    cost = CostModel(problem)
    best_s = find_best_cut(problem, lambda stages: judge_stages(cost, stages))
    answer = ask(problem)
    assert answer.step_s == pytest.approx(best_s, rel=3e-3)  # a rehearsal ends near its bound
    assert answer.bound.step_s <= answer.step_s
    assert check_stages(make_model(problem), answer.stages).is_legal


def test_the_same_input_gives_the_same_rehearsed_answer() -> None:
    """Stages, devices and step."""
    problem = make_random_problem(random.Random(5), 9, 4)
    assert ask(problem) == ask(problem)


def test_finalists_are_the_best_and_of_every_kind() -> None:
    """Half of the places go to the best, one to each other kind; what does not fit has none."""
    drafts = [
        tuple(Part(nodes=(i,), devices=(i,), micro_batch_size=size) for i in range(count))
        for size in (1, 2)
        for count in (1, 2, 3)
    ]
    steps = dict(zip(drafts, [1.0, 1.1, 1.2, 5.0, float("inf"), 4.0], strict=True))
    assert choose_finalists(steps, 2) == [drafts[0], drafts[1]]
    assert choose_finalists(steps, 9) == [drafts[i] for i in (0, 1, 2, 5, 3)]


def test_fewer_judgements_where_each_takes_longer() -> None:
    """A round judges 40 drafts of two stages, and not more than a few of 500."""
    for num_nodes, count in ((2, MOST_JUDGED), (500, LEAST_JUDGED)):
        problem = make_problem_by_hand(
            [1.0] * num_nodes,
            [(i, i + 1) for i in range(num_nodes - 1)],
            cluster=make_cluster(num_nodes),
        )
        draft = tuple(Part(nodes=(i,), devices=(i,), micro_batch_size=1) for i in range(num_nodes))
        assert count_judgements(problem, draft) == count


# -- what must not change a plan, and what may only help -------------------------------------------


def slow_down(problem: Problem, factor: float) -> Problem:
    """The problem with all times of devices and links multiplied."""
    cluster = problem.cluster
    types = tuple(
        msgspec.structs.replace(
            kind,
            bandwidth_bytes_per_s=kind.bandwidth_bytes_per_s / factor,
            launch_s=kind.launch_s * factor,
        )
        for kind in cluster.types
    )
    return dataclasses.replace(
        problem,
        forward_s=problem.forward_s * factor,
        input_grad_s=problem.input_grad_s * factor,
        weight_grad_s=problem.weight_grad_s * factor,
        cluster=msgspec.structs.replace(slow_links(cluster, factor), types=types),
    )


def slow_links(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with all times of links multiplied."""

    def slow(link: Link) -> Link:
        return msgspec.structs.replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
            latency_s=link.latency_s * factor,
        )

    nodes = tuple(msgspec.structs.replace(n, link=slow(n.link)) for n in cluster.nodes)
    return msgspec.structs.replace(cluster, nodes=nodes, link=slow(cluster.link))


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("seed", range(2))
def test_doubling_all_times_doubles_the_step(name: str, seed: int) -> None:
    """The stages stay as they are, the step and its bound take twice as long."""
    problem = make_random_problem(random.Random(seed), 6, 3)
    once, twice = ask(problem, name), ask(slow_down(problem, 2.0), name)
    assert twice.stages == once.stages
    assert twice.step_s == pytest.approx(2 * once.step_s, rel=1e-12)
    assert twice.bound.step_s == pytest.approx(2 * once.bound.step_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_more_bandwidth_never_hurts(seed: int) -> None:
    """No cut takes longer on faster links, nor does what the planner makes of all of them."""
    problem = make_random_problem(random.Random(seed), 4, 2, micro_batch_sizes=(2, 8))
    slow = dataclasses.replace(problem, cluster=slow_links(problem.cluster, 3.0))
    before, after = CostModel(slow), CostModel(problem)
    for stages in list_cuts(problem):
        assert judge_stages(after, stages, schedule="1f1b") <= judge_stages(
            before, stages, schedule="1f1b"
        ) * (1 + 1e-9)
    assert ask(problem, searched=False).step_s <= ask(slow, searched=False).step_s * (1 + 1e-9)
    assert bound_step(problem).step_s <= bound_step(slow).step_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_more_memory_never_hurts(seed: int) -> None:
    """What fits a small device fits a large one; the step and the bound do not grow."""
    words = random.Random(seed)
    steps, bounds = [], []
    for memory_bytes in (60_000, 90_000, 10**9):
        problem = make_problem_by_hand(
            [1.0, 2.0, 1.0, 3.0],
            [(0, 1), (1, 2), (2, 3)],
            cluster=make_cluster(2, memory_bytes=memory_bytes),
            trained_elements=[words.choice([1000, 2000])] * 4,
            saved_bytes=[500] * 4,
        )
        words = random.Random(seed)
        answer = ask(problem, searched=False)
        steps.append(answer.step_s)
        bounds.append(answer.bound.step_s)
    assert steps == sorted(steps, reverse=True)
    assert bounds == sorted(bounds, reverse=True)
