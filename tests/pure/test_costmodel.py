"""The cost model: every formula with numbers that can be checked by hand."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

import msgspec
import pytest

from graphplan.cost.allreduce import allreduce_time, least_allreduce_time
from graphplan.cost.host import adopt_hosts
from graphplan.cost.model import CostModel
from graphplan.cost.rows import share_rows
from graphplan.cost.sums import time_update
from graphplan.errors import CutError, InvalidOption
from graphplan.nouns.cluster import Link
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message
from graphplan.nouns.problem import Save, Tie
from graphplan.nouns.table import Host, ProfileTable
from graphplan.nouns.training import Training
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.referee.verdict import Findings
from graphplan.referee.weights import judge_weights
from tests.pure.problems import make_cluster, make_problem_by_hand

CHAIN = [(0, 1), (1, 2), (2, 3)]


def make_part(
    nodes: tuple[int, ...], *devices: int, size: int = 2, recompute: bool = False
) -> Part:
    """A part with a micro-batch of two."""
    return Part(nodes=nodes, devices=devices, micro_batch_size=size, recompute=recompute)


def test_stage_times_are_sums_over_nodes_at_the_replicas_samples() -> None:
    """Two nodes of 2 and 3 s a sample with 1/2 s overhead each, micro-batch 4 on two devices."""
    problem = make_problem_by_hand([1, 2, 3, 4], CHAIN, overhead_s=0.5)
    price = CostModel(problem).price_nodes((1, 2), (0, 1), 4)
    assert (price.forward_s, price.input_grad_s, price.weight_grad_s) == (11.0, 11.0, 11.0)
    with pytest.raises(InvalidOption, match="cannot be split over 3"):
        CostModel(problem).price_nodes((0,), (0, 1, 2), 4)


def test_recomputation_adds_a_forward_and_keeps_the_inputs_only() -> None:
    """The backward takes one more forward; saved bytes become those of the entering tensor."""
    problem = make_problem_by_hand(
        [1, 1, 1, 1], CHAIN, saved_bytes=[100, 100, 100, 100], flow_elements=5
    )
    plain, again = (
        CostModel(problem)
        .price_stages(
            assemble_stages(
                problem, [make_part((0, 1), 0), make_part((2, 3), 1, recompute=recompute)]
            )
        )
        .stages[1]
        for recompute in (False, True)
    )
    assert (plain.backward_s, again.backward_s) == (8.0, 12.0)
    assert (plain.input_grad_s, again.input_grad_s) == (4.0, 8.0)
    assert (plain.saved_bytes, again.saved_bytes) == (400, 2 * 5 * 4)
    assert again.workspace_bytes - plain.workspace_bytes == 400


def test_a_storage_is_counted_once_in_a_stage() -> None:
    """Nodes 1 and 2 keep the same storage: together it counts once, apart twice."""
    save = Save(savers=(1, 2), bytes_by_size=(7, 14, 28, 56))
    cost = CostModel(make_problem_by_hand([1, 1, 1, 1], CHAIN, saves=(save,)))
    assert cost.stage_memory([1, 2], 2).saved == 14
    assert cost.stage_memory([1], 2).saved == cost.stage_memory([2], 2).saved == 14
    assert cost.stage_memory([0], 2).saved == 0


@pytest.mark.parametrize(
    ("optimizer", "mixed", "expected"),
    [
        ("sgd", False, (40, 40, 0)),
        ("momentum", False, (40, 40, 40)),
        ("adam", False, (40, 40, 80)),
        ("adamw", True, (20, 20, 120)),
    ],
)
def test_weight_memory_by_optimizer(
    optimizer: str, mixed: bool, expected: tuple[int, int, int]
) -> None:
    """Ten trained elements: weights, gradients, optimizer state (with fp32 masters when mixed)."""
    problem = make_problem_by_hand([1], [], trained_elements=[10])
    training = Training(
        batch_size=8,
        optimizer=optimizer,  # type: ignore[arg-type]
        precision="bfloat16" if mixed else "float32",
        mixed=mixed,
    )
    fields = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    fields |= {"training": training, "element_bytes": 2 if mixed else 4}
    memory = CostModel(type(problem)(**fields)).stage_memory([0], 1)
    assert (memory.weights, memory.gradients, memory.optimizer) == expected


def test_versions_of_the_policy_take_memory() -> None:
    """stash keeps w_s + 1 versions of the weights."""
    problem = make_problem_by_hand([1, 1], [(0, 1)], trained_elements=[10, 10])
    graph = assemble_stages(problem, [make_part((0,), 0), make_part((1,), 1)])
    cost = CostModel(problem)
    flush = cost.price_stages(graph)
    stash = cost.price_stages(graph, WeightPolicy(name="stash", warmups=(1, 0)))
    grown = [b.fixed_bytes - a.fixed_bytes for a, b in zip(flush.stages, stash.stages, strict=True)]
    assert grown == [40, 0]


@pytest.mark.parametrize(
    ("name", "optimizer", "direction", "expected"),
    [
        ("predict", "adam", "optimizer", [40, 40, 40]),
        ("predict", "sgd", "optimizer", [80, 80, 40]),
        ("predict", "nesterov", "optimizer", [80, 80, 40]),
        ("predict", "adam", "displacement", [80, 80, 40]),
        ("spectrain1", "adam", "displacement", [80, 80, 80]),
        ("spectrain2", "momentum", "displacement", [160, 120, 0]),
        ("stash", "sgd", "displacement", [80, 40, 0]),
    ],
)
def test_a_direction_that_no_state_tells_takes_memory(
    name: Any, optimizer: Any, direction: Any, expected: list[int]
) -> None:
    """One more buffer at stages that look ahead; the referee finds the same by itself."""
    problem = make_problem_by_hand([1] * 3, [(0, 1), (1, 2)], trained_elements=[10] * 3)
    training = msgspec.structs.replace(problem.training, optimizer=optimizer)
    problem = dataclasses.replace(problem, training=training)
    graph = assemble_stages(problem, [make_part((s,), s) for s in range(3)])
    policy = WeightPolicy(name=name, warmups=(2, 1, 0), direction=direction)
    cost = CostModel(problem)
    flush, priced = cost.price_stages(graph), cost.price_stages(graph, policy)
    pairs = list(zip(flush.stages, priced.stages, strict=True))
    assert [b.fixed_bytes - a.fixed_bytes for a, b in pairs] == expected
    findings = Findings()
    judge_weights(priced, graph, training, policy, findings)
    assert findings.is_clean
    judge_weights(flush, graph, training, policy, findings)
    assert not findings.is_clean


def test_tied_weights_are_held_once_and_reduced_between_stages() -> None:
    """Nodes 0 and 2 share a weight."""
    link = Link(bandwidth_bytes_per_s=40.0, latency_s=0.0)
    tie = Tie(weight="w", readers=(0, 2), trained_elements=10, held_bytes=0)
    problem = make_problem_by_hand(
        [1, 1, 1], [(0, 1), (1, 2)], ties=(tie,), cluster=make_cluster(2, inside=link)
    )
    cost = CostModel(problem)
    assert [cost.sum_nodes(v, 1, (0,)).trained_elements for v in ([0, 2], [0])] == [10, 10]
    apart = cost.price_stages(assemble_stages(problem, [make_part((0, 1), 0), make_part((2,), 1)]))
    assert [stage.reduce_s for stage in apart.stages] == [1.0, 1.0]


def test_a_tensor_is_sent_once_to_a_stage() -> None:
    """Node 0 is read by nodes 1, 2 and 3; the stage {2, 3} gets one copy."""
    link = Link(bandwidth_bytes_per_s=8.0, latency_s=0.25)
    problem = make_problem_by_hand(
        [1, 1, 1, 1], [(0, 1), (0, 2), (0, 3)], cluster=make_cluster(3, inside=link)
    )
    graph = assemble_stages(problem, [make_part((0,), 0), make_part((1,), 1), make_part((2, 3), 2)])
    priced = CostModel(problem).price_stages(graph)
    assert priced.edges == ((0, 1), (0, 2))
    assert priced.transfer_by_ends[0, 2].messages == (
        Message(src=0, dst=2, bytes=8, seconds=1.0, latency_s=0.25, channel="d0>d2"),
    )
    assert priced.transfer_by_ends[2, 0].backward


def test_stages_on_the_same_devices_exchange_no_messages() -> None:
    """Two stages of one device need no link."""
    problem = make_problem_by_hand([1, 1], [(0, 1)])
    graph = assemble_stages(problem, [make_part((0,), 0), make_part((1,), 0)])
    priced = CostModel(problem).price_stages(graph)
    assert [transfer.messages for transfer in priced.transfers] == [(), ()]


@pytest.mark.parametrize(("senders", "receivers"), itertools.product(range(1, 7), range(1, 7)))
def test_rows_are_shared_completely(senders: int, receivers: int) -> None:
    """Every sender's and every receiver's rows are covered, and each receiver has one leader."""
    shares = share_rows(senders, receivers)
    for replica in range(senders):
        rows = sum(share.rows for share in shares if share.src == replica)
        assert rows * senders == shares[0].all_rows
    for replica in range(receivers):
        mine = [share for share in shares if share.dst == replica]
        assert sum(share.rows for share in mine) * receivers == shares[0].all_rows
        assert sum(share.leads for share in mine) == 1


def test_allreduce_takes_the_better_algorithm() -> None:
    """Large tensors go round the ring, small ones through the tree; two levels beat a flat ring."""
    inside = Link(bandwidth_bytes_per_s=100.0, latency_s=1.0)
    cluster = make_cluster(8, devices_per_node=8, inside=inside)
    assert allreduce_time(cluster, range(8), 0) == 0.0
    assert allreduce_time(cluster, [3], 100) == 0.0
    assert allreduce_time(cluster, range(8), 8000) == pytest.approx(14 * (10 + 1))
    assert allreduce_time(cluster, range(8), 100) == pytest.approx(2 * (3 * 1 + 1))
    slow = Link(bandwidth_bytes_per_s=1.0, latency_s=0.0, scope="device")
    fast = Link(bandwidth_bytes_per_s=1e9, latency_s=0.0)
    nodes = make_cluster(8, devices_per_node=4, inside=fast, between=slow)
    assert allreduce_time(nodes, range(8), 80) == pytest.approx(2 * 20 / 2, rel=1e-6)


@pytest.mark.parametrize("scope", ["pair", "node"])
@pytest.mark.parametrize("per_node", [1, 2, 3, 4, 6])
def test_the_least_allreduce_is_that_of_the_best_devices(
    per_node: int, scope: Literal["pair", "node"]
) -> None:
    """Every choice of devices takes at least that long, and one of them just as long."""
    inside = Link(bandwidth_bytes_per_s=300.0, latency_s=0.5)
    between = Link(bandwidth_bytes_per_s=100.0, latency_s=1.0, scope=scope)
    cluster = make_cluster(12, devices_per_node=per_node, inside=inside, between=between)
    for count, num_bytes in itertools.product((1, 2, 3, 4, 6, 12), (0, 50, 5000)):
        found = [
            allreduce_time(cluster, devices, num_bytes)
            for devices in itertools.combinations(range(12), count)
        ]
        least = least_allreduce_time(cluster, count, num_bytes)
        assert least == pytest.approx(min(found)), (count, num_bytes)


def test_parts_must_cover_and_be_acyclic() -> None:
    """assemble_stages refuses what is not a legal cut."""
    problem = make_problem_by_hand([1, 1, 1], [(0, 1), (1, 2)])
    with pytest.raises(CutError, match="2 of 3 nodes"):
        assemble_stages(problem, [make_part((0, 1), 0)])
    with pytest.raises(CutError, match="wait for each other"):
        assemble_stages(problem, [make_part((0, 2), 0), make_part((1,), 1)])


def test_a_frozen_stage_costs_no_backward() -> None:
    """Nodes that need no backward save nothing and run F only."""
    problem = make_problem_by_hand([1, 1], [(0, 1)], saved_bytes=[9, 9])
    fields = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    needs = problem.needs_backward.copy()
    needs[0] = False
    frozen = type(problem)(**(fields | {"needs_backward": needs}))
    graph = assemble_stages(frozen, [make_part((0,), 0), make_part((1,), 1)])
    first, second = CostModel(frozen).price_stages(graph).stages
    assert (first.backward_s, first.saved_bytes, first.needs_backward) == (0.0, 0, False)
    assert (second.backward_s, second.saved_bytes) == (4.0, 18)
    assert msgspec.structs.asdict(first)["forward_s"] == 2.0


def test_a_stage_of_model_inputs_has_no_input_half() -> None:
    """Nothing needs its input gradients: all of the backward, and of what it keeps, is in W."""
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN, saved_bytes=[100, 100, 100, 100])
    parts = [make_part((0, 1), 0), make_part((2, 3), 1)]
    first, second = CostModel(problem).price_stages(assemble_stages(problem, parts)).stages
    assert (first.input_grad_s, first.weight_grad_s, first.backward_s) == (0.0, 8.0, 8.0)
    assert (second.input_grad_s, second.weight_grad_s, second.backward_s) == (4.0, 4.0, 8.0)
    assert first.saved_for_weights_bytes == first.saved_bytes


def test_tasks_pay_for_the_runtime_and_for_their_messages() -> None:
    """1/8 s a task; a message takes 1/4 s and 1/32 s a byte from both of its ends."""
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN, flow_elements=1)
    graph = assemble_stages(problem, [make_part((0, 1), 0), make_part((2, 3), 1)])
    plain = CostModel(problem).price_stages(graph)
    link = msgspec.structs.replace(
        problem.cluster.nodes[0].link, host_s=0.25, host_s_per_byte=1 / 32
    )
    cluster = msgspec.structs.replace(
        problem.cluster,
        types=tuple(msgspec.structs.replace(t, task_s=0.125) for t in problem.cluster.types),
        nodes=tuple(msgspec.structs.replace(n, link=link) for n in problem.cluster.nodes),
    )
    priced = CostModel(dataclasses.replace(problem, cluster=cluster)).price_stages(graph)
    (forward,), (backward,) = (transfer.messages for transfer in priced.transfers)
    assert forward.bytes == backward.bytes == 8
    assert priced.transfers == plain.transfers
    for before, after in zip(plain.stages, priced.stages, strict=True):
        assert after.forward_s - before.forward_s == 0.125 + 0.5
        assert after.backward_s - before.backward_s == 0.125 + 0.5
        assert after.input_grad_s - before.input_grad_s == 0.125 + 0.5
        assert after.weight_grad_s - before.weight_grad_s == 0.125


def test_a_receiver_of_larger_micro_batches_hears_more_messages() -> None:
    """Two micro-batches of the sender make one of the receiver."""
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN, flow_elements=1)
    parts = [make_part((0, 1), 0, size=2), make_part((2, 3), 1, size=4)]
    graph = assemble_stages(problem, parts)
    plain = CostModel(problem).price_stages(graph)
    link = msgspec.structs.replace(problem.cluster.nodes[0].link, host_s=0.25)
    nodes = tuple(msgspec.structs.replace(n, link=link) for n in problem.cluster.nodes)
    cluster = msgspec.structs.replace(problem.cluster, nodes=nodes)
    priced = CostModel(dataclasses.replace(problem, cluster=cluster)).price_stages(graph)
    lost = [a.forward_s - b.forward_s for a, b in zip(priced.stages, plain.stages, strict=True)]
    assert lost == [0.25, 0.5]


def test_an_allreduce_waits_for_both_ends_of_its_messages() -> None:
    """A ring of two: two messages of half the bytes."""
    cluster = make_cluster(2)
    slow = Link(bandwidth_bytes_per_s=2.0, latency_s=1.0, host_s=0.5, host_s_per_byte=0.25)
    nodes = tuple(msgspec.structs.replace(node, link=slow) for node in cluster.nodes)
    shared = msgspec.structs.replace(cluster, nodes=nodes)
    assert allreduce_time(shared, [0, 1], 8) == 2 * (4 / 2 + 1 + 2 * (0.5 + 4 * 0.25))


def test_measured_figures_take_the_place_of_a_profile() -> None:
    """Bandwidth, tasks, optimizer and the link inside the nodes; its scope stays the cluster's."""
    cluster = make_cluster(2)
    kind = cluster.types[0].name
    link = Link(bandwidth_bytes_per_s=5.0, latency_s=0.5, host_s=0.25)
    table = ProfileTable(
        graph="",
        device=kind,
        source="measured",
        batch_sizes=(1,),
        rows=(),
        update_s_per_element=0.5,
        host=Host(num_ranks=2, bandwidth_bytes_per_s=7.0, task_s=0.125, link=link),
    )
    adopted = adopt_hosts(cluster, {kind: table})
    found = adopted.types[0]
    assert (found.bandwidth_bytes_per_s, found.task_s, found.update_s_per_element) == (
        7,
        0.125,
        0.5,
    )
    scope = cluster.nodes[0].link.scope
    assert adopted.nodes[0].link == msgspec.structs.replace(link, scope=scope)
    assert adopted.link == cluster.link
    plain = msgspec.structs.replace(table, host=None, update_s_per_element=None)
    assert adopt_hosts(cluster, {kind: plain}) == cluster
    problem = make_problem_by_hand([1, 1, 1, 1], CHAIN)
    assert time_update(problem, found, 10) == 5.0
