"""Tables of stages equal the cost model; grids, even cuts and loads are what they say."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem, Save, Tie
from graphplan.partition.equal import cut_evenly
from graphplan.partition.maxload.reduce import reduce_problem
from graphplan.partition.pipelines.family import list_all_pairs, sample_pairs
from graphplan.partition.pipelines.grid import Grid, list_grids
from graphplan.partition.pipelines.intervals import Intervals
from graphplan.partition.pipelines.pipeline import CutTables
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, SLOW, problems


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
