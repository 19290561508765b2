"""Packing: groups of devices keep to one node where they can."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import Draft, Part
from graphplan.partition.drafts.pack import pack_groups
from graphplan.partition.drafts.scene import is_legal_draft
from tests.pure.problems import make_cluster, make_problem_by_hand


def make_chain(sizes: list[int], gpus: int, **options: object) -> tuple[Problem, Draft]:
    """A chain of nodes on groups of these sizes, on consecutive devices."""
    problem = make_problem_by_hand(
        [1.0] * len(sizes),
        [(i, i + 1) for i in range(len(sizes) - 1)],
        cluster=make_cluster(gpus, devices_per_node=6),
        **options,  # type: ignore[arg-type]
    )
    draft, first = [], 0
    for node, size in enumerate(sizes):
        devices = tuple(range(first, first + size))
        draft.append(Part(nodes=(node,), devices=devices, micro_batch_size=8))
        first += size
    return problem, tuple(draft)


def count_spanning(problem: Problem, draft: Draft) -> int:
    """Groups with devices in several nodes."""
    node_of = [device.node for device in problem.cluster.devices]
    return sum(len({node_of[d] for d in part.devices}) > 1 for part in draft)


def test_a_group_across_nodes_moves_into_one() -> None:
    """Nodes of 6, 6 and 4: the group of four came to lie on 10 to 13, across two of them."""
    problem, draft = make_chain([2, 2, 2, 2, 2, 4, 2], 16)
    assert count_spanning(problem, draft) == 1
    packed = pack_groups(problem, draft)
    assert packed is not None
    assert packed[5].devices == (12, 13, 14, 15)
    assert count_spanning(problem, packed) == 0


def test_neighbours_stay_together() -> None:
    """Where all fits anyway, what exchanges tensors shares a node."""
    problem, draft = make_chain([1] * 12, 12)
    split = tuple(
        Part(nodes=part.nodes, devices=(6 * (i % 2) + i // 2,), micro_batch_size=8)
        for i, part in enumerate(draft)
    )
    packed = pack_groups(problem, split)
    assert packed is not None
    nodes = [problem.cluster.devices[part.devices[0]].node for part in packed]
    assert sum(a != b for a, b in itertools.pairwise(nodes)) == 1


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6), st.data())
def test_packing_only_moves_devices(sizes: list[int], data: st.DataObject) -> None:
    """Groups keep their size and whom they share it with; nothing is used twice."""
    problem, draft = make_chain(sizes, sum(sizes))
    if len(draft) > 2 and data.draw(st.booleans()):
        last = Part(nodes=draft[-1].nodes, devices=draft[0].devices, micro_batch_size=8)
        draft = (*draft[:-1], last)
    packed = pack_groups(problem, draft) or draft
    assert [len(part.devices) for part in packed] == [len(part.devices) for part in draft]
    assert [part.nodes for part in packed] == [part.nodes for part in draft]
    pairs = list(zip(draft, packed, strict=True))
    assert len({old.devices for old, _ in pairs}) == len({new.devices for _, new in pairs})
    assert len({(old.devices, new.devices) for old, new in pairs}) == len(
        {old.devices for old, _ in pairs}
    )
    assert is_legal_draft(problem, packed) == is_legal_draft(problem, draft)


def test_pinned_devices_are_left_alone() -> None:
    """The user knows best."""
    problem, draft = make_chain([2, 2, 2, 2, 2, 4, 2], 16, pins={0: 0})
    assert pack_groups(problem, draft) is None
