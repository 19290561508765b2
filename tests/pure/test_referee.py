"""The referee's rules, entry points and messages, and that it answers whatever it is given."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from graphplan.errors import InvalidProgram
from graphplan.nouns.plan import Plan, PlannedModel
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, parse_program, parse_schedule
from graphplan.nouns.stages import Stage, StageEdge, StageGraph
from graphplan.nouns.tensor import TensorSpec
from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad, PartsAnswer
from graphplan.referee import (
    Verdict,
    check_plan,
    check_program,
    check_schedule,
    check_stages,
)
from graphplan.referee.rules import RULES
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.simulate import simulate_program
from tests.pure.legal import legal_plans
from tests.pure.strategies import chain_prices, dag_prices
from tests.pure.test_simulate_properties import programs
from tools.maxload.referee import check_parts

FLUSH = WeightPolicy()
replace = msgspec.structs.replace


def say(verdict: Verdict) -> list[str]:
    """Violations as lines."""
    return [str(each) for each in verdict.violations]


LEGAL = "0F0 0>1F0 0F1 0>1F1 1>0B0 0B0 1>0B1 0B1 0U1\n0>1F0 0>1F1 1F0 1B0 1>0B0 1F1 1B1 1>0B1 1U1"


@pytest.mark.parametrize(
    ("old", "new", "violation"),
    [
        ("0U1", "0U1", None),
        ("1B1 ", "", "task-once at device 1, stage 1: 1B1 is missing: 1 of 2 are there."),
        ("1U1", "1U1 1F1", "task-once at device 1, instruction 9 (1F1): is already instruction 5."),
        (
            "1F0 1B0",
            "1B0 1F0",
            "task-order at device 1, instruction 2: 1B0 comes before 1F0, which is instruction 3.",
        ),
        (
            "1>0B1 0B1 0U1",
            "1>0B1 0B1 0U1 1F0",
            "foreign at device 0, instruction 9 (1F0): the device does not host stage 1, only [0].",
        ),
        (
            "0U1",
            "0U1 0F7",
            "foreign at device 0, instruction 9 (0F7): stage 0 has 2 micro-batches.",
        ),
        (
            "1>0B0 0B0",
            "0B0",
            "transfer-ends at device 0, stage 0: 1>0B0 is missing: 1 of 2 are there.",
        ),
        (
            "0F0 0>1F0",
            "0>1F0 0F0",
            "transfer-order at device 0, instruction 0 (0>1F0): is sent before 0F0, which is"
            " instruction 1.",
        ),
        (
            "1>0B1 0B1",
            "0B1 1>0B1",
            "transfer-order at device 0, instruction 7 (1>0B1): is received after 0B1 needs it,"
            " which is instruction 6.",
        ),
        (
            "0>1F0 0>1F1 1F0",
            "0>1F1 0>1F0 1F0",
            "deadlock at devices 0 and 1: device 0 sends 0>1F0 before 0>1F1, device 1 receives"
            " 0>1F1 before 0>1F0: in-order operations wait for each other.",
        ),
        (
            "1F0 1B0 1>0B0 1F1",
            "1F0 1F1 1B0 1>0B0",
            None,
        ),
        ("0U1", "", "update at device 0, stage 0: 0U1 is missing: 0 of 1 are there."),
        (
            "0B1 0U1",
            "0U1 0B1",
            "update at device 0, instruction 7 (0U1): comes before a backward that it covers,"
            " instruction 8.",
        ),
        (
            "1U1",
            "1R1 1U1",
            "update at device 1, stage 1: 1R1 does not belong here: nothing to reduce.",
        ),
    ],
)  # fmt: skip
def test_program_rules(old: str, new: str, violation: str | None) -> None:
    """A broken rule is named with its place and numbers; what is legal passes."""
    assert old in LEGAL
    verdict = check_program(chain_prices(2, 2), parse_program(LEGAL.replace(old, new, 1)), FLUSH)
    assert say(verdict) == ([] if violation is None else [violation])


def test_deadlock_names_the_cycle() -> None:
    """Two devices that wait for each other are named with what they wait for."""
    program = parse_program(
        "0F0 0>1F0 1>0B0 0B0 0F1 0>1F1 1>0B1 0B1 0U1\n0>1F0 0>1F1 1F0 1F1 1B0 1>0B0 1B1 1>0B1 1U1"
    )
    assert say(check_program(chain_prices(2, 2), program, FLUSH)) == [
        "deadlock at device 0, instruction 3 (0B0): device 0 waits at 0B0 for 1>0B0, which device 1"
        " posts behind 1F1; device 1 waits at 1F1 for 0>1F1, which device 0 posts behind 0B0."
        " 2 of 2 devices never end."
    ]


def test_replicas_can_deadlock_in_all_reduces() -> None:
    """Equal lines always meet; a stage's all-reduce before another's transfer can still block."""
    priced = dag_prices([(0, 1)], 1, devices=[(0, 1), (2,)], micro_batch_sizes=[2, 2])
    line = "0F0 0>1F0 1>0B0 0B0 0R0 0U0"
    program = parse_program(f"{line}\n{line}\n0>1F0 1F0 1B0 1>0B0 1U0")
    assert check_program(priced, program, FLUSH).is_legal
    other = parse_program(f"{line}\n{line.replace('0R0 0U0', '0U0 0R0')}\n0>1F0 1F0 1B0 1>0B0 1U0")
    assert say(check_program(priced, other, FLUSH)) == [
        "replica-lines at device 1: instruction 4 is 0U0; its replica, device 0, has 0R0."
    ]


def test_versions() -> None:
    """With warm-up w_s, micro-batch t is min(t, w_s) updates stale, at every stage."""
    priced = chain_prices(2, 3)
    text = (
        "0F0 0>1F0 0F1 0>1F1 1>0B0 0B0 0U0 0F2 0>1F2 1>0B1 0B1 0U1 1>0B2 0B2 0U2\n"
        "0>1F0 0>1F1 1F0 1B0 1>0B0 1U0 1F1 1B1 1>0B1 1U1 0>1F2 1F2 1B2 1>0B2 1U2"
    )
    stash = WeightPolicy(name="stash", warmups=(1, 0))
    assert check_program(priced, parse_program(text), stash).is_legal
    late = text.replace("0U0 0F2 0>1F2", "0F2 0>1F2 0U0")
    assert say(check_program(priced, parse_program(late), stash)) == [
        "version at device 0, instruction 6 (0F2): reads version 0 (staleness 2); with warm-up 1 it"
        " must read version 1 (staleness 1)."
    ]
    wrong = WeightPolicy(name="stash", warmups=(0, 1))
    assert say(check_program(priced, parse_program(text), wrong)) == [
        "policy at edge 0 -> 1: warm-up 0 of the sender is less than 1 of the reader, which can"
        " deadlock."
    ]
    few = WeightPolicy(name="2bw", warmups=(2, 1), accumulate=1)
    assert "accumulates 1 micro-batches, fewer than the largest warm-up 2." in str(
        check_program(priced, parse_program(text), few)
    )


def test_memory_is_replayed() -> None:
    """The peak, its place and its parts are named when a device has too few bytes."""
    priced = chain_prices(
        2, 2, fixed_bytes=100, saved_bytes=10, workspace_bytes=1, memory_bytes=[120, 111]
    )
    assert say(check_program(priced, parse_program(LEGAL), FLUSH)) == [
        "memory at device 0, instruction 2 (0F1): 121 bytes are needed, 20 of them saved"
        " activations; 120 are there."
    ]  # fmt: skip


def test_schedules_without_transfers() -> None:
    """A compute-only schedule is judged by itself: tasks, order, progress."""
    priced = chain_prices(2, 2)
    for build in (build_gpipe, build_1f1b):
        assert check_schedule(priced, build(priced)).is_legal
    stuck = parse_schedule("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", name="stuck")
    assert say(check_schedule(priced, stuck)) == [
        "deadlock at device 0, instruction 1: device 0 waits at 0B0 for 1B0; device 1 waits at 1F1"
        " for 0F1."
    ]
    lowered = parse_schedule("0F0 0F1 0B0 0B1 0U1\n1F0 1B0 1F1 1B1", name="lowered")
    assert say(check_schedule(priced, lowered)) == [
        "foreign at device 0, instruction 4 (0U1): a schedule is compute only."
    ]
    assert "1 lines for 2 devices" in str(check_schedule(priced, parse_schedule("0F0", name="x")))


def make_stages(*ops: tuple[str, ...], edges: str = "") -> StageGraph:
    """Stages of these ops, one a device; edges such as `a:0>1`."""
    spec = TensorSpec(dtype="float32", shape=("b", 2))
    return StageGraph(
        stages=tuple(
            Stage(ops=each, devices=(s,), micro_batch_size=1) for s, each in enumerate(ops)
        ),
        edges=tuple(
            StageEdge(src=int(text[-3]), dst=int(text[-1]), value=text[:-4], spec=spec)
            for text in edges.split()
        ),
    )


DIAMOND = PlannedModel(
    name="diamond", fingerprint="", ops=("a", "b", "c", "d"), edges=((0, 1), (0, 2), (1, 3), (2, 3))
)


@pytest.mark.parametrize(
    ("stages", "violations"),
    [
        (make_stages(("a",), ("b",), ("c",), ("d",), edges="a:0>1 a:0>2 b:1>3 c:2>3"), []),
        (make_stages(("a", "b"), ("c", "d"), edges="a:0>1 b:0>1"), []),
        (
            make_stages(("a", "d"), ("b", "c"), edges="a:0>1"),
            [
                "stage-acyclic at stages [0, 1]: data flows in a circle: 0 -> 1 -> 0.",
                "stage-convex at stage 0: a path leaves it to op 'b' and comes back from op 'b'.",
                "stage-edges at edge 1 -> 0: value 'b': is missing; op 'd' reads it.",
                "stage-edges at edge 1 -> 0: value 'c': is missing; op 'd' reads it.",
            ],
        ),
        (
            make_stages(("a", "b"), ("c", "d"), edges="a:0>1 c:0>1"),
            [
                "stage-edges at edge 0 -> 1: value 'c': no op of stage 1 reads it from stage 0.",
                "stage-edges at edge 0 -> 1: value 'b': is missing; op 'd' reads it.",
            ],
        ),
        (
            make_stages(("a", "b"), ("c",), edges="a:0>1"),
            ["op-once at model: op 'd' is in no stage."],
        ),
        (
            make_stages(("b", "c", "d"), ("a",)),
            [
                "stage-order at stage 1: op 'a' feeds op 'b' of the earlier stage 0.",
                "stage-edges at edge 1 -> 0: value 'a': is missing; op 'c' reads it.",
            ],
        ),
    ],
)
def test_stage_rules(stages: StageGraph, violations: list[str]) -> None:
    """Ops once, convex, acyclic, in order, with exactly the edges that cross."""
    assert say(check_stages(DIAMOND, stages)) == violations


def test_a_quotient_can_be_cyclic_with_convex_stages() -> None:
    """Two convex stages that feed each other are refused although no path comes back."""
    model = PlannedModel(name="x", fingerprint="", ops=("a", "b", "c", "d"), edges=((0, 1), (2, 3)))
    rules = [v.rule for v in check_stages(model, make_stages(("a", "d"), ("b", "c"))).violations]
    assert rules == ["stage-acyclic", "stage-edges", "stage-edges"]


def test_max_load_answers() -> None:
    """Cover, shape, memory and the recomputed value of max-load answers."""
    problem = MaxLoad(
        name="diamond",
        ops=tuple(LoadOp(name="abcd"[i], seconds=i + 1, bytes=10) for i in range(4)),
        edges=DIAMOND.edges,
        tensors=(
            LoadTensor(owner=0, readers=(1, 2), seconds=0.5),
            LoadTensor(owner=1, readers=(3,), seconds=0.25),
            LoadTensor(owner=2, readers=(3,), seconds=0.125),
        ),
        num_parts=2,
        memory_bytes=20,
    )  # fmt: skip
    answer = PartsAnswer(
        solver="hand", parts=((0, 1), (2, 3)), value_s=7.75, bound_s=5.0, proven=False
    )
    assert check_parts(problem, answer).is_legal
    for changes, rule in (
        ({"value_s": 7.0}, "value"),
        ({"bound_s": 8.0}, "bound"),
        ({"proven": True}, "bound"),
        ({"parts": ((0, 1), (2,))}, "op-once"),
        ({"parts": ((0, 1), (2, 3, 1))}, "op-once"),
        ({"parts": ((0, 1), (2, 3, 9))}, "op-once"),
        ({"parts": ((0, 1, 2), (3,))}, "memory"),
        ({"parts": ((0, 3), (1, 2))}, "part-convex"),
        ({"parts": ((2, 3), (0, 1))}, "part-order"),
        ({"parts": ((0,), (1,), (2, 3))}, "part-count"),
    ):
        verdict = check_parts(problem, replace(answer, **changes))
        assert rule in {each.rule for each in verdict.violations}, changes


@settings(max_examples=40, deadline=None)
@given(programs())
def test_lowered_schedules_are_legal(case: tuple[PricedStages, Program]) -> None:
    """Whatever graph is scheduled and lowered, the referee accepts it and the simulator runs it."""
    priced, program = case
    assert str(check_program(priced, program, FLUSH)) == "legal"
    assert simulate_program(priced, program).makespan_s > 0


def shuffle_lines(plan: Plan, seed: int) -> Plan:
    """The plan with a few instructions moved about at random."""
    rng = random.Random(seed)
    lines = [line.split() for line in plan.program]
    for _ in range(rng.randint(1, 2)):
        line = rng.choice(lines)
        i = rng.randrange(len(line))
        line.insert(i + rng.choice([-2, -1, 1, 2]), line.pop(i))
    return replace(plan, program=tuple(map(" ".join, lines)))


def test_referee_and_simulator_agree_on_deadlock() -> None:
    """What the referee finds legal always runs to its end; what cannot run is never legal."""
    num_stuck = num_legal = 0
    for seed in range(150):
        name = random.Random(seed).choice(sorted(legal_plans()))
        plan = shuffle_lines(legal_plans()[name], seed)
        is_legal = check_program(plan.prices, plan.parse_program(), plan.policy).is_legal
        num_legal += is_legal
        try:
            simulate_program(plan.prices, plan.parse_program())
        except InvalidProgram:
            num_stuck += 1
            assert not is_legal
    assert num_stuck > 30
    assert num_legal > 20


ODD_VALUES: dict[type, list[Any]] = {
    bool: [True, False],
    int: [0, 1, 2, 3, 4, 6, 7, 100, -1, -7, 1 << 31, 1 << 63, 10**40, 10**4290],
    float: [0.0, -1.5, 1e308, 5e-324, 3, 0.5],
    str: ["", "0F0", "0>1F0", "9" * 4000 + "F0", "0F0 0F0", "s0_op1", "flush", "stash", "local"],
    type(None): [0, "", None],
}


def corrupt(value: Any, rng: random.Random) -> Any:
    """A JSON value with something inside changed, repeated, left out or turned."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        return {**value, key: corrupt(value[key], rng)}
    if isinstance(value, list | tuple) and value:
        i = rng.randrange(len(value))
        deed = rng.random()
        if deed < 0.8:
            return [*value[:i], corrupt(value[i], rng), *value[i + 1 :]]
        return [[*value[:i], *value[i + 1 :]], [*value, value[i]], value[::-1]][rng.randrange(3)]
    return rng.choice(ODD_VALUES.get(type(value), [0, "", [], {}]))


def corrupt_plans(plan: Plan, num: int) -> Iterator[Plan]:
    """Plans that msgspec still accepts after one to three corruptions."""
    plain = msgspec.to_builtins(plan)
    for seed in range(num):
        rng = random.Random(seed)
        changed = dict(plain)
        for _ in range(rng.randint(1, 3)):
            part = rng.choice(["model", "cluster", "stages", "policy", "prices", "program"])
            changed[part] = corrupt(changed[part], rng)
        try:
            yield msgspec.json.decode(msgspec.json.encode(changed), type=Plan)
        except (msgspec.DecodeError, OverflowError):
            continue


@pytest.mark.parametrize("name", ["replicas", "mixed", "2bw"])
def test_every_readable_plan_gets_a_verdict(name: str) -> None:
    """Whatever a plan file says, as long as it can be read, the referee answers."""
    verdicts = [check_plan(plan) for plan in corrupt_plans(legal_plans()[name], 330)]
    assert len(verdicts) > 100
    assert sum(not verdict.is_legal for verdict in verdicts) > 50


@pytest.mark.parametrize("name", ["shared", "frozen", "async-replicas"])
def test_the_simulator_refuses_what_it_cannot_run(name: str) -> None:
    """Programs and prices that make no sense end in an error of ours, or in a timeline."""
    num_run = num_refused = 0
    for plan in corrupt_plans(legal_plans()[name], 200):
        try:
            program = plan.parse_program()
        except InvalidProgram:
            continue
        try:
            simulate_program(plan.prices, program)
            num_run += 1
        except InvalidProgram:
            num_refused += 1
    assert num_run > 10
    assert num_refused > 10


def test_many_violations_are_counted() -> None:
    """A rule that is broken everywhere is told a few times and then counted."""
    plan = legal_plans()["stash"]
    verdict = check_plan(replace(plan, program=(" ".join(["2F0"] * 500), *plan.program[1:])))
    foreign = [each for each in verdict.violations if each.rule == "foreign"]
    assert len(foreign) == 21
    assert foreign[-1].message == "480 more violations of this rule."


def test_the_documentation_lists_every_rule() -> None:
    """docs/referee.md explains each rule in the words of the code."""
    text = (Path(__file__).parents[2] / "docs" / "referee.md").read_text()
    for rule, proves in RULES.items():
        assert f"| `{rule}` | {proves} |" in text
