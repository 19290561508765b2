"""Pipelines: tables equal the cost model, bounds hold, planners never beat brute force."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.cost.model import CostModel
from graphplan.errors import CutError, InvalidOption, NoFeasiblePlan, UnknownName
from graphplan.nouns.cluster import Cluster, DeviceType, Link, Node
from graphplan.nouns.plan import PlannedModel
from graphplan.nouns.problem import Problem, Save, Tie
from graphplan.nouns.stages import StageGraph
from graphplan.partition import solve_problem
from graphplan.partition.answer import Answer, Request
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.bounds.bound import bound_step
from graphplan.partition.equal import cut_evenly
from graphplan.partition.maxload.reduce import reduce_problem
from graphplan.partition.pipelines.family import list_all_pairs, sample_pairs
from graphplan.partition.pipelines.grid import Grid, list_grids
from graphplan.partition.pipelines.intervals import Intervals
from graphplan.partition.pipelines.pipeline import CutTables, StageList, StageTables, cut_pipeline
from graphplan.partition.remedy import explain_infeasible
from graphplan.planner.evaluate import make_evaluator
from graphplan.referee import check_stages
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.zerobubble import build_zero_bubble
from tests.pure.problems import make_cluster, make_problem_by_hand

CHAIN = [(0, 1), (1, 2), (2, 3)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
SLOW = Link(bandwidth_bytes_per_s=64.0, latency_s=0.01)
PLANNERS = ("data-parallel", "equal", "chain", "downset", "ilp")


def ask(problem: Problem, planner: str, *, time_limit_s: float = 20.0) -> Answer:
    """The answer of a planner under the 1F1B evaluation."""
    evaluate = make_evaluator(CostModel(problem))
    return solve_problem(problem, planner, Request(evaluate=evaluate, time_limit_s=time_limit_s))


def list_partitions(num_nodes: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to cut nodes into sets (restricted growth strings)."""

    def grow(labels: list[int]) -> Iterator[list[int]]:
        if len(labels) == num_nodes:
            yield labels
            return
        for label in range(max(labels, default=-1) + 2):
            yield from grow([*labels, label])

    for labels in grow([]):
        count = max(labels) + 1
        yield [tuple(v for v, label in enumerate(labels) if label == p) for p in range(count)]


def list_plans(problem: Problem) -> Iterator[StageGraph]:
    """Every partition with every placement on disjoint groups of devices and every size."""
    devices = range(len(problem.cluster.devices))
    groups = [
        group for r in range(1, len(devices) + 1) for group in itertools.combinations(devices, r)
    ]
    for sets in list_partitions(problem.num_nodes):
        for chosen in itertools.product(groups, repeat=len(sets)):
            used = [device for group in chosen for device in group]
            if len(set(used)) != len(used):
                continue
            for size in problem.micro_batch_sizes:
                if any(size % len(group) for group in chosen):
                    continue
                parts = [
                    Part(nodes=nodes, devices=group, micro_batch_size=size)
                    for nodes, group in zip(sets, chosen, strict=True)
                ]
                try:
                    yield assemble_stages(problem, parts)
                except CutError:
                    break


def describe(problem: Problem) -> PlannedModel:
    """The op DAG for the referee."""
    ops = tuple(op for node in problem.nodes for op in node.ops)
    return PlannedModel(name="test", fingerprint="0" * 16, ops=ops, edges=problem.edges)


@st.composite
def problems(draw: st.DrawFn, *, max_nodes: int = 4, max_devices: int = 3) -> Problem:
    """Small problems with weights, links that cost time, and saved tensors."""
    num = draw(st.integers(1, max_nodes), label="nodes")
    pairs = list(itertools.combinations(range(num), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True), label="edges") if pairs else []
    whole = st.lists(st.integers(0, 4), min_size=num, max_size=num)
    link = SLOW if draw(st.booleans(), label="slow links") else None
    return make_problem_by_hand(
        [float(s) for s in draw(whole, label="seconds")],
        edges,
        cluster=make_cluster(
            draw(st.integers(1, max_devices), label="devices"),
            devices_per_node=2,
            inside=link,
            between=link,
        ),
        batch_size=4,
        micro_batch_sizes=(1, 2, 4),
        trained_elements=[100 * w for w in draw(whole, label="weights")],
        saved_bytes=draw(whole, label="saved"),
        overhead_s=float(draw(st.integers(0, 2), label="overhead")),
        flow_elements=draw(st.integers(1, 8), label="elements"),
    )


# -- tables ----------------------------------------------------------------------------------------


def enrich(problem: Problem, rng: random.Random) -> Problem:
    """The problem with shared storages, tied weights, workspace and frozen nodes."""
    num, sizes = problem.num_nodes, problem.sample_sizes

    def some() -> tuple[int, ...]:
        return tuple(sorted(rng.sample(range(num), rng.randint(1, num))))

    workspace = problem.workspace_bytes.copy()
    workspace[:] = [[rng.choice([0, 5, 9]) for _ in range(num)] for _ in sizes]
    backward = problem.needs_backward.copy()
    backward[: rng.randint(0, 2)] = False
    return dataclasses.replace(
        problem,
        workspace_bytes=workspace,
        needs_backward=backward,
        saves=tuple(
            Save(savers=some(), bytes_by_size=tuple(7 * n for n in sizes)) for _ in range(3)
        ),
        ties=tuple(
            Tie(weight=f"w{i}", readers=some(), trained_elements=10, held_bytes=3) for i in range(2)
        ),
    )


def assert_tables_equal_the_cost_model(tables: CutTables, *, exact_workspace: bool) -> None:
    """Every stage of the tables has the times and bytes of the cost model."""
    problem = tables.problem
    model = CostModel(problem)
    for size, recompute in itertools.product((0, 2), (False, True)):
        samples = problem.sample_sizes[size]
        times, memory = tables.times((0,), size), tables.memory(size, recompute=recompute)
        front, back = tables.transfers(size)
        for i, j in zip(*tables.legal().nonzero(), strict=True):
            nodes = tables.nodes_of(int(i), int(j))
            wanted = model.stage_memory(nodes, samples, recompute=recompute)
            trains = bool(problem.needs_backward[list(nodes)].any())
            forward, inputs, weights = model.stage_times(nodes, [0], samples)
            assert times.forward_s[i, j] == pytest.approx(forward)
            assert times.backward_s[i, j] == pytest.approx(inputs + weights if trains else 0.0)
            assert memory.saved[i, j] == (wanted.saved if trains else 0)
            fixed = wanted.fixed + wanted.workspace
            if exact_workspace:
                assert memory.fixed[i, j] == fixed
            else:
                assert fixed <= memory.fixed[i, j] <= fixed + 9
            assert front[i, j] + back[i, j] == wanted.buffers
            assert tables.trained_elements[i, j] == model.trained_elements(nodes)


@settings(max_examples=15, deadline=None)
@given(problems(max_nodes=6), st.integers(0, 9))
def test_interval_tables_equal_the_cost_model(problem: Problem, seed: int) -> None:
    """All intervals, in blocks of one or two nodes, with everything that memory counts."""
    rich = enrich(problem, random.Random(seed))
    singles = [(v,) for v in range(rich.num_nodes)]
    assert_tables_equal_the_cost_model(Intervals(rich, singles), exact_workspace=True)
    pairs = [tuple(range(v, min(v + 2, rich.num_nodes))) for v in range(0, rich.num_nodes, 2)]
    assert_tables_equal_the_cost_model(Intervals(rich, pairs), exact_workspace=True)


@settings(max_examples=15, deadline=None)
@given(problems(max_nodes=5), st.integers(0, 9))
def test_down_set_tables_equal_the_cost_model(problem: Problem, seed: int) -> None:
    """All stages between nested down-sets; workspace may be rounded up."""
    rich = enrich(problem, random.Random(seed))
    everything = list_all_pairs(rich, limit=100)
    assert everything is not None
    assert_tables_equal_the_cost_model(everything, exact_workspace=False)
    sampled = sample_pairs(rich, limit=12, seed=seed)
    assert_tables_equal_the_cost_model(sampled, exact_workspace=False)
    assert sampled.nodes_of(0, sampled.num_blocks) == tuple(range(rich.num_nodes))


def test_grids_hand_out_devices_in_cluster_order() -> None:
    """Two nodes of four: one pipeline over both, or the same pipeline in each."""
    cluster = make_cluster(8, devices_per_node=4, between=SLOW)
    one, two = list_grids(cluster)
    assert (one.devices(2, 2), two.devices(2, 2)) == ((2, 3), (2, 3, 6, 7))
    assert one.place(1, 2) is one.place(5, 2)
    assert one.place(2, 2) is not one.place(1, 2), "only the former borders on the other node"
    assert one.place(2, 2).back_s_per_byte == 1 / 64
    many = make_cluster(514, devices_per_node=257)
    assert [(grid.unit, grid.num_units) for grid in list_grids(many)] == [(3, 171), (2, 128)]
    assert Grid(many, unit=257).num_units == 2


def test_even_cuts_are_even() -> None:
    """Marks at equal shares of the weight; no part is empty."""
    assert cut_evenly([1, 1, 1, 1], 2) == [(0, 2), (2, 4)]
    assert cut_evenly([9, 1, 1, 1], 3) == [(0, 1), (1, 2), (2, 4)]
    assert cut_evenly([0, 0, 0], 3) == [(0, 1), (1, 2), (2, 3)]


def test_a_problem_reduces_to_loads() -> None:
    """Forward and backward of a node, and a flow both ways over the link between the stages."""
    cluster = make_cluster(4, devices_per_node=2, between=SLOW)
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN, cluster=cluster, flow_elements=2)
    load = reduce_problem(problem, 2, num_parts=4)
    assert [op.seconds for op in load.ops] == [6.0, 12.0, 18.0, 24.0]
    assert [tensor.seconds for tensor in load.tensors] == [2 * 2 * 2 * 4 / 64] * 3
    inside = reduce_problem(problem, 2, num_parts=1, num_replicas=2)
    assert [op.seconds for op in inside.ops] == [3.0, 6.0, 9.0, 12.0]


# -- bounds ----------------------------------------------------------------------------------------


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


# -- planners --------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None)
@given(problems(max_nodes=3, max_devices=2))
def test_planners_are_legal_and_no_better_than_everything(problem: Problem) -> None:
    """The referee accepts every answer; none is below the bound or the best of all plans."""
    evaluate = make_evaluator(CostModel(problem))
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
    intervals = Intervals(problem, [(v,) for v in range(problem.num_nodes)])
    for size in problem.micro_batch_sizes:
        tables = StageTables(StageList(intervals), Grid(cluster), size)
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
        ask(dataclasses.replace(problem, allow_recompute=False), "chain")


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


# -- time and interrupts ---------------------------------------------------------------------------


def test_an_interrupt_returns_the_best_so_far() -> None:
    """The third evaluation is interrupted; the better of the first two is the answer."""
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN)
    inner = make_evaluator(CostModel(problem))
    seen: list[float] = []

    def evaluate(stages: StageGraph) -> float:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(inner(stages))
        return seen[-1]

    answer = solve_problem(problem, "equal", Request(evaluate=evaluate))
    assert answer.step_s == min(seen)


def test_progress_tells_every_gain() -> None:
    """Step times fall, the bound stays."""
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN, overhead_s=0.3)
    told: list[tuple[float, float]] = []
    request = Request(
        evaluate=make_evaluator(CostModel(problem)),
        progress=lambda step_s, bound_s: told.append((step_s, bound_s)),
    )
    answer = solve_problem(problem, "chain", request)
    assert [step for step, _ in told] == sorted({step for step, _ in told}, reverse=True)
    assert told[-1] == (answer.step_s, answer.bound.step_s)


def test_a_passed_deadline_still_answers() -> None:
    """With no time at all the first thing that fits is returned."""
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN)
    request = Request(
        evaluate=make_evaluator(CostModel(problem)),
        time_limit_s=1e-9,
        started_s=time.perf_counter() - 1,
    )
    for planner in ("data-parallel", "equal"):
        assert solve_problem(problem, planner, request).step_s < math.inf


# -- nothing fits ----------------------------------------------------------------------------------


def explain(**options: object) -> NoFeasiblePlan:
    """The error for four nodes of 100 trained elements (800 bytes with gradients)."""
    defaults: dict[str, object] = {"trained_elements": [100] * 4, "micro_batch_sizes": (2, 4)}
    return explain_infeasible(make_problem_by_hand([1] * 4, CHAIN, **(defaults | options)))  # type: ignore[arg-type]


def test_too_few_devices_are_told_with_the_number_that_suffices() -> None:
    """Four nodes of 800 bytes: two devices of 1,000 hold two of them, four would hold all."""
    error = explain(cluster=make_cluster(2, memory_bytes=1000))
    assert "Nothing fits into 2 devices of 1000 B" in error.message
    assert "'n2' to 'n3' needs 1.578 KiB" in error.message
    assert "se --gpus 4" in error.remedy
    assert "KiB of usable memory" in error.remedy


def test_advice_works() -> None:
    """What is advised is then feasible: recomputation, a smaller micro-batch, more devices."""
    options: dict[str, object] = {
        "saved_bytes": [200] * 4,
        "allow_recompute": False,
        "micro_batch_sizes": (2,),
    }
    error = explain(cluster=make_cluster(4, memory_bytes=1700), **options)
    assert "llow recomputation" in error.remedy
    assert "use --micro-batch 1" in error.remedy
    for change in ({"allow_recompute": True}, {"micro_batch_sizes": (1,)}):
        problem = make_problem_by_hand(
            [1] * 4,
            CHAIN,
            trained_elements=[100] * 4,
            cluster=make_cluster(4, memory_bytes=1700),
            **(options | change),  # type: ignore[arg-type]
        )
        assert ask(problem, "chain").step_s < math.inf


def test_a_planner_that_cannot_is_told_from_a_problem_that_cannot() -> None:
    """Data parallel does not fit, but a pipeline does, and the error says so."""
    problem = make_problem_by_hand(
        [1] * 4, CHAIN, trained_elements=[100] * 4, cluster=make_cluster(4, memory_bytes=1000)
    )
    with pytest.raises(NoFeasiblePlan, match="--planner graph") as caught:
        ask(problem, "data-parallel")
    assert "fits" in caught.value.remedy
    assert ask(problem, "chain").step_s < math.inf


def test_an_impossible_problem_is_explained_by_every_planner() -> None:
    """No device holds a node: all planners raise the same class of error."""
    problem = make_problem_by_hand(
        [1] * 4, CHAIN, trained_elements=[100] * 4, cluster=make_cluster(4, memory_bytes=500)
    )
    for planner in PLANNERS:
        with pytest.raises(NoFeasiblePlan, match="needs"):
            ask(problem, planner)


def test_sequences_of_sizes_are_swept() -> None:
    """Every planner may choose any of the sizes; a single size is kept."""
    sizes: Sequence[int] = (2,)
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN, micro_batch_sizes=sizes)
    for planner in PLANNERS:
        answer = ask(problem, planner)
        assert {stage.micro_batch_size for stage in answer.stages.stages} == {2}
