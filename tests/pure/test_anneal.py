"""Annealing and mixing cuts of max-load problems: against all cuts, and its own bookkeeping."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.partition.maxload.loads import make_parts_answer, measure_load
from graphplan.partition.maxload.maxload import MaxLoad
from tests.pure.maxloads import brute_force, make_maxload, maxloads
from tools.families import RECIPES, describe_gnmt, describe_nasnet, pose_load
from tools.maxload.anneal import Annealer
from tools.maxload.cover import Chain
from tools.maxload.default import solve_maxload
from tools.maxload.downset import solve_maxload as solve_exactly
from tools.maxload.incumbent import find_incumbent
from tools.maxload.referee import check_parts
from tools.maxload.wide import improve_widely


def check_chain(problem: MaxLoad, chain: Chain) -> None:
    """The referee accepts its parts, and its value is what they weigh."""
    answer = make_parts_answer(problem, chain.parts, solver="auto", bound_s=0.0, proven=False)
    assert check_parts(problem, answer).is_legal
    assert chain.value_s == pytest.approx(answer.value_s, rel=1e-9)


def make_layers(seed: int, *, width: int = 4, depth: int = 5, num_parts: int = 3) -> MaxLoad:
    """Random layers with whole numbers."""
    rng = random.Random(seed)
    edges = [
        (r * width - width + rng.randrange(width), r * width + i)
        for r in range(1, depth)
        for i in range(width)
        for _ in range(2)
    ]
    count = width * depth
    return make_maxload(
        [float(rng.randint(1, 9)) for _ in range(count)],
        edges,
        num_parts=num_parts,
        tensor_s=[float(rng.randint(0, 5)) for _ in range(count)],
    )


@given(maxloads(), st.integers(0, 5))
def test_annealed_cuts_are_legal_and_no_worse(problem: MaxLoad, seed: int) -> None:
    """Memory and edges are respected, and the value is that of the parts."""
    chain = find_incumbent(problem)
    if chain is None:
        return
    found = Annealer(problem).run(chain, num_moves=400, seed=seed)
    assert found.value_s <= chain.value_s
    check_chain(problem, found)
    best_s = brute_force(problem)
    assert found.value_s >= best_s * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_annealing_finds_the_optimum_of_small_layers(seed: int) -> None:
    """Twenty ops in three parts, from one long part: as good as the down-set search."""
    problem = make_layers(seed)
    everything = (1 << problem.num_ops) - 1
    start = Chain((everything,), measure_load(problem, range(problem.num_ops)))
    found = improve_widely(problem, start, num_starts=4)
    check_chain(problem, found)
    assert found.value_s == pytest.approx(solve_exactly(problem).value_s, rel=1e-9)


def test_the_same_seed_anneals_alike() -> None:
    """Counted moves: the same cut twice; another seed takes another way."""
    problem = pose_load(describe_gnmt(layers=4, steps=6), 4, tensor_share=1.0)
    chain = find_incumbent(problem)
    assert chain is not None
    found = [Annealer(problem).run(chain, num_moves=20_000, seed=seed) for seed in (1, 1)]
    assert found[0] == found[1]


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_wide_search_reaches_proven_optima(share: float) -> None:
    """A NASNet of four cells, without looking at all its down-sets."""
    problem = pose_load(describe_nasnet(cells=4), 4, tensor_share=share)
    chain = find_incumbent(problem)
    assert chain is not None
    found = improve_widely(problem, chain, num_starts=4)
    assert found.value_s <= 1.005 * solve_exactly(problem).value_s


def test_a_passed_deadline_still_answers() -> None:
    """A wide graph and no time: the first cut, with its bound."""
    problem = pose_load(RECIPES["layered-8x20"](), 8, tensor_share=1.0)
    answer = solve_maxload(problem, time_limit_s=0.01)
    assert check_parts(problem, answer).is_legal
    assert answer.bound_s <= answer.value_s
