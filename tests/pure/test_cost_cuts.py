"""Tables over cuts and appraisals say what the cost model says of each stage."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphplan.cost.cuts import MEAN, Cuts, OrderCuts
from graphplan.cost.downsets import DownsetCuts
from graphplan.cost.model import CostModel
from graphplan.cost.sums import Copies, StageSums, price_sums
from graphplan.nouns.cluster import Cluster, Link, Node
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.problem import Problem, Save, Tie
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.drafts.estimate import (
    BACKWARD,
    CLOSING,
    FORWARD,
    RETURNING,
    sum_messages,
)
from graphplan.partition.pipelines.family import list_all_cuts, sample_cuts
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, problems

SECONDS = ("forward_s", "input_grad_s", "weight_grad_s")


def make_mixed(problem: Problem, rng: random.Random) -> Cluster:
    """Two device types with different runtimes, and links that take time from their ends."""
    fast = msgspec.structs.replace(problem.cluster.types[0], task_s=rng.choice([0.0, 0.25]))
    slow = msgspec.structs.replace(fast, name="slow", task_s=0.5, bandwidth_bytes_per_s=1e8)
    link = Link(
        bandwidth_bytes_per_s=1e3,
        latency_s=0.01,
        host_s=rng.choice([0.0, 0.125]),
        host_s_per_byte=rng.choice([0.0, 1e-3]),
    )
    node = Node(devices=("gpu", "gpu", "slow", "slow"), link=link)
    cluster = make_cluster(4)
    return msgspec.structs.replace(cluster, types=(fast, slow), nodes=(node,))


def enrich(problem: Problem, rng: random.Random) -> Problem:
    """The problem with all that a stage may share, on unequal devices, in mixed precision."""
    num, sizes = problem.num_nodes, problem.sample_sizes

    def some() -> tuple[int, ...]:
        return tuple(sorted(rng.sample(range(num), rng.randint(1, num))))

    def draw(shape: tuple[int, ...], *choices: int) -> Any:
        return numpy.array(rng.choices(choices, k=int(numpy.prod(shape)))).reshape(shape)

    backward = problem.needs_backward.copy()
    backward[: rng.randint(0, 2)] = False
    mixed = rng.random() < 0.5
    return dataclasses.replace(
        problem,
        cluster=make_mixed(problem, rng),
        training=msgspec.structs.replace(
            problem.training, mixed=mixed, precision="bfloat16" if mixed else "float32"
        ),
        element_bytes=2 if mixed else 4,
        forward_s=numpy.concatenate([problem.forward_s, 3 * problem.forward_s]),
        input_grad_s=numpy.concatenate([problem.input_grad_s, 2 * problem.input_grad_s]),
        weight_grad_s=numpy.concatenate([problem.weight_grad_s, 5 * problem.weight_grad_s]),
        workspace_bytes=draw((len(sizes), num), 0, 5, 9),
        saved_bytes=draw((len(sizes), num), 0, 3, 8),
        saved_for_weights_bytes=draw((len(sizes), num), 0, 2, 20),
        held_bytes=draw((num,), 0, 11),
        needs_backward=backward,
        flows=tuple(
            msgspec.structs.replace(flow, needs_grad=rng.random() < 0.7) for flow in problem.flows
        ),
        saves=tuple(
            Save(savers=some(), bytes_by_size=tuple(7 * n for n in sizes)) for _ in range(3)
        ),
        ties=tuple(
            Tie(weight=f"w{i}", readers=some(), trained_elements=10, held_bytes=3) for i in range(2)
        ),
    )


def assert_cuts_say_what_the_model_says(cuts: Cuts, *, exact: bool) -> None:
    """Sums and costs of every stage, on either device type, on both, with recomputation."""
    problem, cost = cuts.problem, cuts.cost
    for size, types in ((0, (0,)), (1, (1,)), (1, (0, 1))):
        samples = problem.sample_sizes[size]
        sums = cuts.sums(size, types)
        for i, j in numpy.argwhere(cuts.legal).tolist():
            nodes = cuts.nodes_of(i, j)
            wanted = cost.sum_nodes(nodes, samples, types)
            for field in dataclasses.fields(StageSums):
                found = getattr(sums, field.name)[i, j]
                if field.name == "workspace_bytes" and not exact:
                    assert getattr(wanted, field.name) <= found <= 9
                else:
                    assert found == pytest.approx(getattr(wanted, field.name)), field.name
            if exact:
                devices = tuple(2 * kind for kind in types)
                assert_costs_are_prices(cuts, (i, j), nodes, devices, samples * len(types))


def assert_costs_are_prices(
    cuts: Cuts, place: tuple[int, int], nodes: tuple[int, ...], devices: tuple[int, ...], size: int
) -> None:
    """What the tables cost a stage is its price on such devices."""
    types = tuple(d // 2 for d in devices)
    position = cuts.problem.size_index[size // len(devices)]
    for recompute in (False, True):
        costs = cuts.costs(position, types, recompute=recompute, replicas=len(devices))
        price = cuts.cost.price_nodes(nodes, devices, size, recompute=recompute)
        for field in dataclasses.fields(costs):
            wanted = getattr(price, field.name)
            assert getattr(costs, field.name)[place] == pytest.approx(wanted), field.name
        elements = cuts.sums(position, types).own_elements
        left_s = cuts.cost.reductions.left_over(devices, elements, costs.backward_s)
        # So few weights are in one bucket, which the estimate lets wait for all of the backward.
        if price.needs_backward:
            assert left_s[place] == pytest.approx(price.reducing_s)


@settings(max_examples=15, deadline=None)
@given(problems(max_nodes=6), st.integers(0, 99))
def test_tables_along_an_order_equal_the_cost_model(problem: Problem, seed: int) -> None:
    """All intervals of single nodes, of pairs, and of a part of the nodes."""
    rng = random.Random(seed)
    cost = CostModel(enrich(problem, rng))
    num = problem.num_nodes
    singles = [(v,) for v in range(num)]
    pairs = [tuple(range(v, min(v + 2, num))) for v in range(0, num, 2)]
    for items in (singles, pairs, singles[1:]):
        if items:
            assert_cuts_say_what_the_model_says(OrderCuts(cost, items), exact=True)


@settings(max_examples=15, deadline=None)
@given(problems(max_nodes=5), st.integers(0, 99))
def test_tables_between_down_sets_equal_the_cost_model(problem: Problem, seed: int) -> None:
    """All of them, a sample, and those of a part of the nodes; workspace may be rounded up."""
    cost = CostModel(enrich(problem, random.Random(seed)))
    everything = list_all_cuts(cost, limit=100)
    assert everything is not None
    sampled = sample_cuts(cost, limit=12, seed=seed)
    assert sampled.nodes_of(0, sampled.num_cuts - 1) == tuple(range(problem.num_nodes))
    front = DownsetCuts(cost, [(0,), (1,)], [0, 1, 3]) if problem.num_nodes > 1 else everything
    for cuts in (everything, sampled, front):
        assert_cuts_say_what_the_model_says(cuts, exact=False)


def test_the_mean_device_is_between_the_types() -> None:
    """Tables for searches that do not know yet which device a stage gets."""
    problem = enrich(make_problem_by_hand([1, 2, 3, 4], CHAIN), random.Random(3))
    cuts = OrderCuts(CostModel(problem), [tuple(range(problem.num_nodes))])
    mean, fast, slow = (cuts.sums(0, types).forward_s[0, 1] for types in (MEAN, (0,), (1,)))
    assert fast <= mean <= slow


@settings(max_examples=20, deadline=None)
@given(problems(max_nodes=5), st.integers(0, 99))
def test_policies_price_the_copies_that_they_hold(problem: Problem, seed: int) -> None:
    """What price_stages says under stash is what the sums cost with so many versions."""
    cost = CostModel(enrich(problem, random.Random(seed)))
    num = problem.num_nodes
    parts = [
        Part(nodes=(v,), devices=(v % 4,), micro_batch_size=1, recompute=seed % 2 == 1)
        for v in range(min(num, 4) - 1)
    ]
    rest = tuple(range(len(parts), num))
    parts.append(Part(nodes=rest, devices=(len(parts),), micro_batch_size=1))
    graph = assemble_stages(cost.problem, parts)
    warmups = tuple(range(len(parts) - 1, -1, -1))
    policy = WeightPolicy(name="stash", warmups=warmups)
    for stage, price in zip(graph.stages, cost.price_stages(graph, policy).stages, strict=True):
        s = graph.stages.index(stage)
        types = (cost.problem.type_index_by_device[stage.devices[0]],)
        sums = cost.sum_nodes(cost.stage_nodes(stage), 1, types)
        copies = Copies(versions=policy.num_versions(s))
        costs = price_sums(
            cost.problem, sums, types, recompute=bool(stage.recompute), copies=copies
        )
        assert (price.fixed_bytes, price.saved_bytes) == (costs.fixed_bytes, costs.saved_bytes)
        assert price.workspace_bytes == costs.workspace_bytes


@settings(max_examples=30, deadline=None)
@given(problems(max_nodes=5), st.integers(0, 99), st.sampled_from([1, 2]))
def test_appraised_times_are_those_of_the_priced_stages(
    problem: Problem, seed: int, width: int
) -> None:
    """Ties that are reduced between parts, and what messages take from both ends, are in them."""
    assume(problem.num_nodes > 1)
    cost = CostModel(enrich(problem, random.Random(seed)))
    cut = random.Random(seed).randint(1, problem.num_nodes - 1)
    halves = (tuple(range(cut)), tuple(range(cut, problem.num_nodes)))
    parts = [
        Part(nodes=nodes, devices=tuple(range(2 * p, 2 * p + width)), micro_batch_size=2)
        for p, nodes in enumerate(halves)
    ]
    appraiser = Appraiser(cost, relaxed=True)
    edges, amounts = sum_messages(
        numpy.array([0] * cut + [1] * (problem.num_nodes - cut)),
        numpy.array([problem.size_index[2]] * 2),
        appraiser._flows,
        appraiser._flow_bytes,
    )
    seconds = numpy.array([appraiser._row(part)[1] for part in parts]).T.copy()
    appraiser._add_others(parts, seconds, edges, amounts)
    priced = cost.price_stages(assemble_stages(cost.problem, parts))
    for part, own, price in zip(parts, seconds.T, priced.stages, strict=True):
        assert own[FORWARD] == pytest.approx(price.forward_s)
        if price.needs_backward:
            assert own[BACKWARD] == pytest.approx(price.backward_s)
            assert own[RETURNING] == pytest.approx(price.input_grad_s)
            left_s = appraiser.price(part).left_s
            assert own[CLOSING] == pytest.approx(left_s + price.reduce_s + price.update_s)
