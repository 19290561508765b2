"""Max-load: exact solvers against trying every cut, against each other, and on published graphs."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from graphplan.errors import NoFeasiblePlan, SearchLimit
from graphplan.partition import ilp
from graphplan.partition.dag.downsets import enumerate_downsets, list_members, list_prefixes
from graphplan.partition.dag.linear import list_orders, make_blocks
from graphplan.partition.maxload.contract import contract_maxload
from graphplan.partition.maxload.loads import bound_load, measure_load
from graphplan.partition.maxload.maxload import MaxLoad, PartsAnswer
from graphplan.partition.maxload.shrink import shrink_maxload
from tests.pure.maxloads import brute_force, make_maxload, maxloads, weigh_cut
from tools.maxload import cbc, cover, default, downset
from tools.maxload.corridor import improve_chain
from tools.maxload.cover import Family, find_chain
from tools.maxload.incumbent import find_incumbent
from tools.maxload.referee import check_parts
from tools.workloads.workload import MaxLoadWorkload, pose_maxload, read_workload

WORKLOADS = Path(__file__).resolve().parents[2] / "tools" / "workloads"
CHAIN = [(0, 1), (1, 2), (2, 3)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def solve_or_none(solve: object, problem: MaxLoad, **options: object) -> PartsAnswer | None:
    """The answer, None when the solver says that nothing fits."""
    try:
        answer: PartsAnswer = solve(problem, **options)  # type: ignore[operator]
    except NoFeasiblePlan:
        return None
    return answer


def assert_optimal(problem: MaxLoad, answer: PartsAnswer | None, optimum_s: float) -> None:
    """The answer is proven, legal for the referee, and as good as the optimum."""
    if optimum_s == math.inf:
        assert answer is None
        return
    assert answer is not None
    assert answer.proven
    assert answer.value_s == pytest.approx(optimum_s, rel=1e-9, abs=1e-12)
    assert check_parts(problem, answer).is_legal, check_parts(problem, answer)


# -- by hand ---------------------------------------------------------------------------------------


def test_a_chain_is_cut_where_it_is_even_and_cheap() -> None:
    """1+4 | 3+2 has loads 5+1 and 5+1; cutting elsewhere is heavier."""
    problem = make_maxload([1, 4, 3, 2], CHAIN, tensor_s=1)
    answer = downset.solve_maxload(problem)
    assert answer.parts == ((0, 1), (2, 3))
    assert (answer.value_s, answer.bound_s, answer.proven) == (6.0, 6.0, True)


def test_a_tensor_is_paid_once_by_a_part_however_many_ops_read_it() -> None:
    """Op 0's tensor has two readers in the second part, which pays it once."""
    problem = make_maxload([5, 2, 2, 1], DIAMOND, tensor_s=[2, 0, 0, 0])
    assert measure_load(problem, [1, 2, 3]) == 7.0
    assert downset.solve_maxload(problem).value_s == 7.0


def test_a_branch_may_leave_its_neighbours() -> None:
    """No order of the diamond is needed: {0, 1} and {2, 3} is as good as it gets."""
    problem = make_maxload([1, 3, 3, 1], DIAMOND)
    assert downset.solve_maxload(problem).value_s == 4.0


def test_a_tensor_may_flow_against_the_edges() -> None:
    """Gradients flow back; which end owns a tensor makes no difference to the loads."""
    problem = make_maxload([1, 4, 3, 2], CHAIN, tensor_s=[1, 2, 3, 0])
    reversed_ = msgspec.structs.replace(
        problem,
        tensors=tuple(
            msgspec.structs.replace(t, owner=t.readers[0], readers=(t.owner,))
            for t in problem.tensors
        ),
    )
    answer = downset.solve_maxload(reversed_)
    assert answer.value_s == downset.solve_maxload(problem).value_s
    assert check_parts(reversed_, answer).is_legal


def test_too_little_memory_is_told_with_what_would_do() -> None:
    """Three ops of 4 bytes do not fit two devices of 5; three devices do."""
    problem = make_maxload([1, 1, 1], CHAIN[:2], sizes=[4, 4, 4], memory_bytes=5)
    for solve in (downset.solve_maxload, ilp.solve_maxload, default.solve_maxload):
        with pytest.raises(NoFeasiblePlan, match="Use 3 devices or more"):
            solve(problem)
    with pytest.raises(NoFeasiblePlan, match="'op1' needs 9 bytes, a device has 5"):
        downset.solve_maxload(make_maxload([1, 1], [(0, 1)], sizes=[1, 9], memory_bytes=5))


def test_too_many_downsets_are_a_search_limit() -> None:
    """Twelve independent ops have 4,096 down-sets; with a budget of 1,000 the solver says so."""
    problem = make_maxload([1.0] * 12, [])
    with pytest.raises(SearchLimit, match="more than 1,000 down-sets"):
        downset.solve_maxload(problem, max_downsets=1000)


# -- against trying everything ---------------------------------------------------------------------


def test_every_dag_of_four_ops_is_solved_exactly() -> None:
    """All 64 edge sets on four ops, with and without memory, two and three parts."""
    rng = random.Random(4)
    pairs = list(itertools.combinations(range(4), 2))
    for chosen in itertools.product([False, True], repeat=len(pairs)):
        edges = [pair for pair, used in zip(pairs, chosen, strict=True) if used]
        for num_parts, memory in ((2, None), (3, 9)):
            problem = make_maxload(
                [rng.randint(0, 5) for _ in range(4)],
                edges,
                num_parts=num_parts,
                tensor_s=[rng.randint(0, 3) for _ in range(4)],
                sizes=[rng.randint(0, 5) for _ in range(4)],
                memory_bytes=memory,
            )
            answer = solve_or_none(downset.solve_maxload, problem)
            assert_optimal(problem, answer, brute_force(problem))


@settings(max_examples=60, deadline=None)
@given(maxloads())
def test_the_down_set_search_finds_the_optimum(problem: MaxLoad) -> None:
    """The dynamic program over down-sets equals trying every cut."""
    answer = solve_or_none(downset.solve_maxload, problem)
    assert_optimal(problem, answer, brute_force(problem))


@settings(max_examples=25, deadline=None)
@given(maxloads(max_ops=5))
def test_integer_programming_finds_the_optimum(problem: MaxLoad) -> None:
    """CP-SAT equals trying every cut."""
    assert_optimal(problem, solve_or_none(ilp.solve_maxload, problem), brute_force(problem))


@settings(max_examples=8, deadline=None)
@given(maxloads(max_ops=5))
def test_two_integer_solvers_agree(problem: MaxLoad) -> None:
    """The same program through PuLP and CBC has the value that CP-SAT finds."""
    first = solve_or_none(ilp.solve_maxload, problem)
    second = solve_or_none(cbc.solve_maxload, problem)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert second.value_s == pytest.approx(first.value_s, rel=1e-6, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(maxloads())
def test_the_default_finds_the_optimum_of_small_problems(problem: MaxLoad) -> None:
    """`auto` equals trying every cut."""
    answer = solve_or_none(default.solve_maxload, problem)
    assert_optimal(problem, answer, brute_force(problem))


@settings(max_examples=30, deadline=None)
@given(maxloads(tight_memory=False))
def test_bounds_hold_and_heuristics_are_cuts(problem: MaxLoad) -> None:
    """The bound is at most the optimum, a first cut and its improvement are at least that."""
    optimum_s = brute_force(problem)
    assert bound_load(problem) <= optimum_s * (1 + 1e-9)
    chain = find_incumbent(problem)
    assert chain is not None
    better = improve_chain(problem, chain, num_rounds=3)
    assert optimum_s <= better.value_s * (1 + 1e-9)
    assert better.value_s <= chain.value_s
    labels = {op: p for p, part in enumerate(better.parts) for op in part}
    cut = [labels[op] for op in range(problem.num_ops)]
    assert weigh_cut(problem, cut) == pytest.approx(better.value_s, rel=1e-9, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(maxloads())
def test_contraction_keeps_the_optimum(problem: MaxLoad) -> None:
    """Ops that are merged for good lose nothing, also under a memory limit."""
    small, groups = contract_maxload(problem)
    assert sorted(op for group in groups for op in group) == list(range(problem.num_ops))
    assert brute_force(small) == pytest.approx(brute_force(problem), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(maxloads())
def test_more_memory_or_devices_never_hurt(problem: MaxLoad) -> None:
    """The optimum does not grow with another device, or when memory no longer matters."""
    optimum_s = brute_force(problem)
    for changes in ({"num_parts": problem.num_parts + 1}, {"memory_bytes": None}):
        richer = msgspec.structs.replace(problem, **changes)
        answer = solve_or_none(downset.solve_maxload, richer)
        assert (math.inf if answer is None else answer.value_s) <= optimum_s * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(maxloads())
def test_renaming_ops_keeps_the_optimum(problem: MaxLoad) -> None:
    """Another topological numbering has the same value."""
    order = list(list_orders(problem.predecessors, problem.successors, [], num_random=2, seed=1))[
        -1
    ]
    number = {op: i for i, op in enumerate(order)}
    renamed = msgspec.structs.replace(
        problem,
        ops=tuple(problem.ops[op] for op in order),
        edges=tuple(sorted((number[src], number[dst]) for src, dst in problem.edges)),
        tensors=tuple(
            msgspec.structs.replace(
                t, owner=number[t.owner], readers=tuple(sorted(number[r] for r in t.readers))
            )
            for t in problem.tensors
        ),
    )
    first = solve_or_none(downset.solve_maxload, problem)
    second = solve_or_none(downset.solve_maxload, renamed)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.value_s == pytest.approx(second.value_s, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(maxloads())
def test_doubling_all_times_doubles_the_optimum(problem: MaxLoad) -> None:
    """Ops and tensors alike; and tensors that take no time never hurt."""
    optimum_s = brute_force(problem)
    doubled, free = (
        msgspec.structs.replace(
            problem,
            ops=tuple(msgspec.structs.replace(op, seconds=op.seconds * work) for op in problem.ops),
            tensors=tuple(
                msgspec.structs.replace(t, seconds=t.seconds * move) for t in problem.tensors
            ),
        )
        for work, move in ((2, 2), (1, 0))
    )
    answer = solve_or_none(downset.solve_maxload, doubled)
    value_s = math.inf if answer is None else answer.value_s
    assert value_s == pytest.approx(2 * optimum_s, rel=1e-9)
    answer = solve_or_none(downset.solve_maxload, free)
    assert (math.inf if answer is None else answer.value_s) <= optimum_s * (1 + 1e-9)


# -- the machinery ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(maxloads())
def test_down_sets_are_those_that_hold_their_predecessors(problem: MaxLoad) -> None:
    """Each down-set is listed once, and no other set."""
    wanted = [
        members
        for members in range(1 << problem.num_ops)
        if all(not members >> dst & 1 or members >> src & 1 for src, dst in problem.edges)
    ]
    found = enumerate_downsets(problem.predecessors, problem.successors, limit=1 << 10)
    assert found is not None
    assert sorted(found) == wanted
    assert enumerate_downsets(problem.predecessors, problem.successors, limit=1) is None


def test_sets_are_ints_with_a_bit_for_each_member() -> None:
    """Prefixes of 2, 0, 1 grow by one bit."""
    assert list_prefixes([2, 0, 1]) == [0b000, 0b100, 0b101, 0b111]
    assert list_members(0b1011) == (0, 1, 3)


@settings(max_examples=20, deadline=None)
@given(maxloads())
def test_every_order_is_topological(problem: MaxLoad) -> None:
    """All orders hold every op once, after what it needs; blocks cut them without reordering."""
    tensors = [(tuple(t.ends), t.seconds) for t in problem.tensors]
    work = [op.seconds for op in problem.ops]
    orders = list_orders(problem.predecessors, problem.successors, tensors, num_random=2)
    for order in orders:
        place = {op: i for i, op in enumerate(order)}
        assert sorted(order) == list(range(problem.num_ops))
        assert all(place[src] < place[dst] for src, dst in problem.edges)
        blocks = make_blocks(order, work, tensors, max_blocks=3)
        assert tuple(op for block in blocks for op in block) == order
        assert len(blocks) <= max(3, 1)


@settings(max_examples=30, deadline=None)
@given(maxloads())
def test_compiled_or_not_finds_the_same_chain(problem: MaxLoad) -> None:
    """As with NUMBA_DISABLE_JIT, to the last down-set."""
    downsets = enumerate_downsets(problem.predecessors, problem.successors, limit=1 << 10)
    assert downsets is not None
    family = Family(problem, downsets)
    chain = find_chain(family, problem.num_parts, math.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cover, "reach_downsets", cover.reach_downsets.plain)
        assert find_chain(family, problem.num_parts, math.inf) == chain


def test_wide_graphs_are_improved_without_listing_their_down_sets() -> None:
    """Twenty independent chains: corridors come within 2% of even work, and nothing is claimed."""
    rng = random.Random(1)
    edges = [(3 * b + i, 3 * b + i + 1) for b in range(20) for i in range(2)]
    problem = make_maxload([rng.uniform(1, 3) for _ in range(60)], edges, num_parts=4)
    answer = default.solve_maxload(problem, time_limit_s=1.5)
    assert check_parts(problem, answer).is_legal
    assert answer.bound_s <= answer.value_s <= 1.02 * problem.seconds / 4


def test_large_problems_are_folded_and_unfolded() -> None:
    """300 ops become at most 50 groups; a cut of the groups is a cut of the ops."""
    rng = random.Random(2)
    edges = [(max(0, v - rng.randint(1, 4)), v) for v in range(1, 300)]
    problem = make_maxload([rng.uniform(0, 1) for _ in range(300)], edges, num_parts=3)
    small, groups = shrink_maxload(problem, max_ops=50)
    assert small.num_ops <= 50
    assert sorted(op for group in groups for op in group) == list(range(300))
    assert small.seconds == pytest.approx(problem.seconds)


# -- published graphs ------------------------------------------------------------------------------


SMALL_FILES = sorted(p for p in WORKLOADS.glob("maxload-*.json") if "inception" not in p.name)
"""Inception's two files take seconds; tools/bench_partition.py has them."""


@pytest.mark.parametrize("path", SMALL_FILES, ids=lambda path: path.stem)
def test_published_optima_are_found_and_proven(path: Path) -> None:
    """With four devices: the published optimum, to a millionth."""
    workload = read_workload(path)
    assert isinstance(workload, MaxLoadWorkload)
    problem = pose_maxload(workload, 4)
    answer = default.solve_maxload(problem, time_limit_s=60)
    assert answer.proven
    assert answer.value_s == pytest.approx(workload.optimum_s_by_devices["4"], rel=1e-6)
    assert check_parts(problem, answer).is_legal
