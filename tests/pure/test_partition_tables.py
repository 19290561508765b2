"""Grids, even cuts and loads are what they say."""

from __future__ import annotations

from graphplan.partition.equal import cut_evenly
from graphplan.partition.maxload.reduce import reduce_problem
from graphplan.partition.pipelines.grid import Grid, list_grids
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, SLOW


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
