"""Pipelines: planners never beat brute force, obey pins and limits, and may be stopped."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.cost.cuts import OrderCuts
from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan, UnknownName
from graphplan.nouns.cluster import Cluster, DeviceType, Link, Node
from graphplan.nouns.problem import Problem
from graphplan.partition.pipelines.grid import Grid
from graphplan.partition.pipelines.pipeline import StageList, StageTables, cut_pipeline
from graphplan.planner.contest import Contest
from graphplan.planner.judge import judge_stages
from graphplan.planner.options import SearchOptions
from graphplan.referee import check_stages
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, DIAMOND, PLANNERS, ask, describe, list_plans, problems


@settings(max_examples=6, deadline=None)
@given(problems(max_nodes=3, max_devices=2))
def test_planners_are_legal_and_no_better_than_everything(problem: Problem) -> None:
    """The referee accepts every answer; none is below the bound or the best of all plans."""
    evaluate = partial(judge_stages, CostModel(problem), schedule="1f1b")
    best_s = min(map(evaluate, list_plans(problem)))
    for planner in PLANNERS:
        answer = ask(problem, planner)
        assert check_stages(describe(problem), answer.stages).is_legal
        assert answer.step_s == evaluate(answer.stages)
        assert answer.bound.step_s <= answer.step_s * (1 + 1e-9)
        assert best_s <= answer.step_s * (1 + 1e-9)


def list_layouts(num_blocks: int, num_units: int) -> Iterator[list[tuple[int, int, int]]]:
    """All stages (first block, last block, width) that end with the last unit."""
    if num_blocks == 0:
        yield []
        return
    for first in range(num_blocks):
        for width in range(1, num_units + 1):
            for rest in list_layouts(first, num_units - width):
                yield [*rest, (first, num_blocks, width)]


def measure_layout(tables: StageTables, layout: list[tuple[int, int, int]]) -> float:
    """The slowest stage of a layout; infinity when one has too much in flight for its memory."""
    unit, slowest = tables.grid.num_units, 0.0
    for stages_left, (first, last, width) in enumerate(reversed(layout), start=1):
        unit -= width
        if width not in tables.widths:
            return math.inf
        at = tables.at(tables.grid.place(unit, width))
        here = (at.first == first) & (at.last == last)
        ways = [
            float(seconds[here][0])
            for seconds, most in ((at.seconds, at.most), (at.recomputed_s, at.recomputed_most))
            if here.any() and most[here][0] >= stages_left
        ]
        slowest = max(slowest, min(ways, default=math.inf))
    return slowest


@settings(max_examples=20, deadline=None)
@given(problems(max_nodes=4, max_devices=3), st.sampled_from([40, 60, 10**9]))
def test_the_pipeline_program_finds_the_least_bottleneck(problem: Problem, memory: int) -> None:
    """For every size: what the dynamic program finds equals trying every layout."""
    cluster = msgspec.structs.replace(
        problem.cluster,
        types=(msgspec.structs.replace(problem.cluster.types[0], memory_bytes=memory),),
    )
    problem = dataclasses.replace(
        problem, cluster=cluster, trained_elements=problem.trained_elements // 100
    )
    cuts = OrderCuts(CostModel(problem), [(v,) for v in range(problem.num_nodes)])
    for size in problem.micro_batch_sizes:
        tables = StageTables(StageList(cuts), Grid(cluster), size)
        layouts = list(list_layouts(problem.num_nodes, tables.grid.num_units))
        best_s = min(measure_layout(tables, layout) for layout in layouts)
        cut = cut_pipeline(tables, best_s)
        if best_s == math.inf:
            assert cut is None
            continue
        assert cut is not None
        assert cut.bottleneck_s == pytest.approx(best_s)
        assert cut_pipeline(tables, best_s * (1 - 1e-9) - 1e-12) is None
        fewest = min(len(x) for x in layouts if measure_layout(tables, x) <= best_s)
        assert len(cut.stages) == fewest


def test_heavy_weights_make_stages_and_light_ones_replicas() -> None:
    """Reducing 4 x 4,000 bytes costs more than a pipeline; reducing nothing is free."""
    options: Mapping[str, object] = {"batch_size": 32, "micro_batch_sizes": (1, 2, 4, 8, 16, 32)}
    cluster = make_cluster(4, inside=Link(bandwidth_bytes_per_s=40.0, latency_s=0.0))
    heavy = make_problem_by_hand(
        [1] * 4,
        CHAIN,
        cluster=cluster,
        trained_elements=[1000] * 4,
        **options,  # type: ignore[arg-type]
    )
    light = make_problem_by_hand([1] * 4, CHAIN, cluster=cluster, **options)  # type: ignore[arg-type]
    for planner in ("chain", "downset"):
        assert len(ask(heavy, planner).stages.stages) == 4
        assert len(ask(light, planner).stages.stages) == 1


def test_activations_that_do_not_fit_are_recomputed() -> None:
    """Two devices of 60 bytes hold the inputs of two nodes, but not what their backward needs."""
    problem = make_problem_by_hand(
        [1, 1, 1, 1],
        CHAIN,
        saved_bytes=[20] * 4,
        cluster=make_cluster(2, memory_bytes=60),
        micro_batch_sizes=(1,),
    )
    tight = ask(problem, "chain")
    assert any(stage.recompute for stage in tight.stages.stages)
    with pytest.raises(NoFeasiblePlan, match="llow recomputation"):
        ask(dataclasses.replace(problem, recompute="none"), "chain")


def test_more_memory_never_hurts() -> None:
    """The same problem on larger devices has no worse answer."""
    steps = []
    for memory in (60, 80, 120, 10**9):
        problem = make_problem_by_hand(
            [1, 2, 3, 2], DIAMOND, saved_bytes=[9] * 4, cluster=make_cluster(2, memory_bytes=memory)
        )
        steps.append(ask(problem, "downset").step_s)
    assert steps == sorted(steps, reverse=True)


def test_slow_devices_get_less() -> None:
    """Of a fast and a slow device the fast one gets three of four nodes."""
    cluster = Cluster(
        name="mixed",
        types=tuple(
            DeviceType(
                name=name,
                memory_bytes=10**9,
                bandwidth_bytes_per_s=1e9,
                flops_per_s_by_dtype={"float32": 1.0},
                launch_s=0.0,
            )
            for name in ("fast", "slow")
        ),
        nodes=(Node(devices=("fast", "slow"), link=Link(bandwidth_bytes_per_s=1e9, latency_s=0)),),
        link=Link(bandwidth_bytes_per_s=1e9, latency_s=0),
    )
    problem = make_problem_by_hand(
        [1] * 4, CHAIN, cluster=cluster, batch_size=64, micro_batch_sizes=(1, 2)
    )
    scale = [[[1.0]], [[3.0]]]
    problem = dataclasses.replace(
        problem,
        forward_s=problem.forward_s * scale,
        input_grad_s=problem.input_grad_s * scale,
        weight_grad_s=problem.weight_grad_s * scale,
    )
    answer = ask(problem, "chain")
    assert [(len(s.ops), s.devices) for s in answer.stages.stages] == [(3, (0,)), (1, (1,))]
    assert answer.bound.step_s <= answer.step_s


def test_pins_are_obeyed_or_refused() -> None:
    """A pinned node sits on its device alone; data parallel cannot do that on two devices."""
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN, pins={3: 0}, cluster=make_cluster(2))
    for planner in ("equal", "chain", "downset", "ilp"):
        last = ask(problem, planner).stages.stages[-1]
        assert (last.ops[-1], last.devices) == ("n3", (0,))
    apart = make_problem_by_hand([1, 1], [(0, 1)], pins={0: 0, 1: 1}, cluster=make_cluster(2))
    with pytest.raises(InvalidOption, match="'data-parallel' has no plan with the pins n0=0, n1=1"):
        ask(apart, "data-parallel")


def test_unknown_planners_are_refused() -> None:
    """With the nearest name."""
    with pytest.raises(UnknownName, match="Did you mean 'chain'"):
        ask(make_problem_by_hand([1], []), "chian")


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", ["equal", "chain"])
def test_the_best_so_far_is_there_after_every_draft(planner: str) -> None:
    """Step times fall, the bound stays below; whoever stops has the better of what was judged."""
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN, overhead_s=0.3)
    contest = Contest(CostModel(problem), SearchOptions(planner=planner))
    told = [contest.merge().step_s for _ in contest.ask(planner)]
    assert told == sorted(told, reverse=True)
    assert told[-1] == contest.merge().step_s == ask(problem, planner, searched=True).step_s
    assert contest.bound.step_s <= told[-1]


def test_a_planner_is_asked_once() -> None:
    """The second question is answered by what is known."""
    contest = Contest(CostModel(make_problem_by_hand([1, 2, 3, 4], CHAIN)), SearchOptions())
    assert len(list(contest.ask("equal"))) > 0
    assert list(contest.ask("equal")) == []


def test_sequences_of_sizes_are_swept() -> None:
    """Every planner may choose any of the sizes; a single size is kept."""
    sizes: Sequence[int] = (2,)
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN, micro_batch_sizes=sizes)
    for planner in PLANNERS:
        answer = ask(problem, planner)
        assert {stage.micro_batch_size for stage in answer.stages.stages} == {2}
