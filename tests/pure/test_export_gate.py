"""The gate: what each runtime cannot say of a plan is refused with its reason, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from graphplan.errors import InvalidOption
from graphplan.export.gate import judge_export, pass_gate
from graphplan.export.targets import TARGETS
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.training import Training
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.zerobubble import build_zero_bubble
from tests.pure.exported import cut_layers, decoder, hand_plan
from tests.pure.test_planner import towers

MODEL, TIED = decoder(4), decoder(4, tied=True)
FROZEN, SHARED = decoder(4, frozen=True), decoder(4, shared=True)
HALVES = cut_layers(MODEL, (2, 2))
QUARTERS = cut_layers(MODEL, (1, 1, 1, 1))
NOTHING: set[str] = set()

halves = partial(hand_plan, MODEL, HALVES)
quarters = partial(hand_plan, MODEL, QUARTERS)


def in_graph() -> Plan:
    """Two towers on a device each, and what joins them on a third."""
    model = towers(length=2)
    ops = [tuple(f"t{t}l{i}" for i in range(2)) for t in range(2)]
    return hand_plan(model, [*ops, ("total",)])


def cut_inside() -> Plan:
    """The second layer's halves are on both sides of the cut."""
    first, second = HALVES
    return hand_plan(MODEL, [tuple(o for o in first if o != "feed1"), ("feed1", *second)])


def head_apart() -> Plan:
    """The last norm stays with the layers, the head is alone."""
    return hand_plan(MODEL, [HALVES[0] + HALVES[1][:-1], HALVES[1][-1:]])


PAIRS = [(0, 1), (2, 3)]
# What each target objects to, in the order megatron, torchtitan, deepspeed, torch.
CASES: dict[str, tuple[Callable[[], Plan], OpGraph, tuple[set[str], ...]]] = {
    "two stages": (halves, MODEL, (NOTHING, NOTHING, NOTHING, NOTHING)),
    "stages in turn": (
        lambda: quarters(devices=[(0,), (1,), (0,), (1,)]),
        MODEL,
        (NOTHING, NOTHING, {"placement"}, NOTHING),
    ),
    "stages there and back": (
        lambda: quarters(devices=[(0,), (1,), (1,), (0,)]),
        MODEL,
        ({"placement"}, {"placement"}, {"placement"}, NOTHING),
    ),
    "stages backwards": (
        lambda: halves(devices=[(1,), (0,)]),
        MODEL,
        ({"placement"}, {"placement"}, {"placement"}, NOTHING),
    ),
    "an idle device": (
        lambda: halves(num_devices=3),
        MODEL,
        ({"placement"},) * 4,
    ),
    "replicas": (
        lambda: halves(devices=PAIRS),
        MODEL,
        (NOTHING, NOTHING, NOTHING, {"replicas"}),
    ),
    "unequal replicas": (
        lambda: halves(devices=[(0, 1), (2,)]),
        MODEL,
        ({"replicas"},) * 4,
    ),
    "a micro-batch that replicas do not divide": (
        lambda: halves(devices=PAIRS, sizes=3),
        MODEL,
        ({"batch"}, {"batch"}, {"batch"}, {"replicas"}),
    ),
    "unequal micro-batches": (lambda: halves(sizes=(4, 2)), MODEL, ({"batch"},) * 4),
    "few micro-batches for turns": (
        lambda: quarters(devices=[(0,), (1,), (0,), (1,)], num_micro_batches=1),
        MODEL,
        ({"batch"}, NOTHING, {"placement"}, NOTHING),
    ),
    "zero 1": (
        lambda: halves(devices=PAIRS, zero=1),
        MODEL,
        (NOTHING, {"zero"}, NOTHING, {"replicas", "zero"}),
    ),
    "zero 3": (
        lambda: halves(devices=PAIRS, zero=3),
        MODEL,
        ({"zero"}, NOTHING, {"zero"}, {"replicas", "zero"}),
    ),
    "zero of one stage": (
        lambda: halves(devices=PAIRS, zero=(1, 0)),
        MODEL,
        ({"zero"}, {"zero"}, {"zero"}, {"replicas", "zero"}),
    ),
    "all recomputed": (
        lambda: halves(recompute=HALVES),
        MODEL,
        (NOTHING, NOTHING, NOTHING, NOTHING),
    ),
    "one stage recomputed": (
        lambda: halves(recompute=[HALVES[0], ()]),
        MODEL,
        ({"recompute"}, {"recompute"}, NOTHING, NOTHING),
    ),
    "first layers recomputed": (
        lambda: halves(recompute=[("attend0", "feed0"), ("attend2", "feed2")]),
        MODEL,
        (NOTHING, {"recompute"}, {"recompute"}, {"recompute"}),
    ),
    "last layers recomputed": (
        lambda: halves(recompute=[("attend1", "feed1"), ("attend3", "feed3")]),
        MODEL,
        ({"recompute"}, {"recompute"}, {"recompute"}, {"recompute"}),
    ),
    "part of a layer recomputed": (
        lambda: halves(recompute=[("feed0",), ()]),
        MODEL,
        ({"recompute"}, {"recompute"}, {"recompute"}, {"recompute"}),
    ),
    "2bw": (
        lambda: halves(policy=WeightPolicy(name="2bw", warmups=(1, 0), accumulate=4)),
        MODEL,
        ({"policy"},) * 4,
    ),
    "local": (lambda: halves(policy=WeightPolicy(name="local")), MODEL, ({"policy"},) * 4),
    "GPipe": (lambda: halves(order=build_gpipe), MODEL, ({"order"}, NOTHING, {"order"}, NOTHING)),
    "zero bubble": (
        lambda: halves(order=build_zero_bubble),
        MODEL,
        ({"order"}, NOTHING, {"order"}, NOTHING),
    ),
    "zero bubble, recomputed": (
        lambda: halves(order=build_zero_bubble, recompute=HALVES),
        MODEL,
        ({"order"},) * 4,
    ),
    "nesterov": (
        lambda: halves(training=Training(batch_size=8, optimizer="nesterov")),
        MODEL,
        ({"training"}, {"training"}, NOTHING, NOTHING),
    ),
    "16 bits without master weights": (
        lambda: halves(training=Training(batch_size=8, precision="bfloat16")),
        MODEL,
        ({"training"}, NOTHING, {"training"}, NOTHING),
    ),
    "a layer cut": (cut_inside, MODEL, ({"layers"}, {"layers"}, {"layers"}, NOTHING)),
    "the head cut": (head_apart, MODEL, ({"layers"}, {"layers"}, {"layers"}, NOTHING)),
    "ties": (
        lambda: hand_plan(TIED, HALVES),
        TIED,
        (NOTHING, {"ties"}, NOTHING, NOTHING),
    ),
    "layers that share a weight": (
        lambda: hand_plan(SHARED, HALVES),
        SHARED,
        ({"ties"}, {"ties"}, {"ties"}, NOTHING),
    ),
    "frozen weights": (
        lambda: hand_plan(FROZEN, HALVES),
        FROZEN,
        ({"training"}, {"training"}, NOTHING, NOTHING),
    ),
    "a graph": (in_graph, towers(length=2), ({"layers"}, {"layers"}, {"layers"}, NOTHING)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("index", "target"), enumerate(TARGETS))
def test_every_target_says_what_it_can(name: str, index: int, target: str) -> None:
    """What it cannot say is refused for that reason alone, with something to type."""
    make, model, expected = CASES[name]
    plan = make()
    found = judge_export(plan, TARGETS[target], model)
    assert {each.aspect for each in found} == expected[index]
    if not found:
        pass_gate(plan, TARGETS[target], model)
        return
    with pytest.raises(InvalidOption) as refused:
        pass_gate(plan, TARGETS[target], model)
    assert all(each.reason in str(refused.value) for each in found)
    assert f"--for {target}" in refused.value.remedy


def test_the_models_of_the_table_differ_from_the_plans() -> None:
    """A plan of another model is refused before anything is said of it."""
    with pytest.raises(InvalidOption, match="fingerprint"):
        pass_gate(halves(), TARGETS["megatron"], TIED)


def test_a_table_that_all_layers_read_does_not_make_a_graph() -> None:
    """The rotary table goes from stage 0 to all others, which are a chain nevertheless."""
    plan = quarters()
    assert {(0, 2), (0, 3)} < set(plan.stages.edges_by_ends)
    assert not judge_export(plan, TARGETS["megatron"], MODEL)
