"""Cuts of prime modules with too many down-sets: what they are, and what they are good for."""

from __future__ import annotations

import random

import pytest

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.partition.dag.downsets import enumerate_downsets
from graphplan.partition.dag.work import measure_times
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.graph import ENRICHED_FROM
from graphplan.partition.trees.candidates import CandidateSearch
from graphplan.partition.trees.lattice import list_down_sets
from graphplan.partition.trees.line import Line
from graphplan.partition.trees.shape import MAX_CUTS, Shape, enrich_shape
from graphplan.partition.trees.sublattice import MAX_ADDED, choose_cuts
from graphplan.referee import check_stages
from tests.pure.cuts import make_model
from tests.pure.problems import make_problem_by_hand
from tests.pure.questions import ask
from tools.families import describe_gnmt
from tools.synthetic import pose_recipe


def make_layers(seed: int, *, width: int, depth: int) -> Problem:
    """Random layers with unequal times."""
    words = random.Random(seed)
    edges = [
        (r * width - width + words.randrange(width), r * width + i)
        for r in range(1, depth)
        for i in range(width)
        for _ in range(2)
    ]
    seconds = [words.choice([1.0, 2.0, 3.0, 5.0]) for _ in range(width * depth)]
    return make_problem_by_hand(seconds, edges)


def make_line(problem: Problem) -> Line:
    """Every node is an item."""
    return Line(problem, measure_times(problem), [(v,) for v in range(problem.num_nodes)])


def make_grid(gpus: int = 8) -> Problem:
    """A grid of recurrent cells: one prime module."""
    recipe = describe_gnmt(layers=4, steps=8)
    return pose_recipe(recipe, find_cluster("summit", gpus=gpus), batch_size=4 * gpus)


@pytest.mark.parametrize("seed", range(4))
def test_cuts_are_down_sets_in_order(seed: int) -> None:
    """From nothing to everything, no smaller one later, all prefixes of the order among them."""
    problem = make_layers(seed, width=5, depth=5)
    cuts = choose_cuts(make_line(problem), problem.edges)
    everything = set(
        enumerate_downsets(problem.predecessors, problem.successors, limit=10**6) or ()
    )
    assert set(cuts) <= everything
    assert len(set(cuts)) == len(cuts) <= problem.num_nodes + 1 + MAX_ADDED
    assert cuts == sorted(cuts, key=lambda each: (each.bit_count(), each))
    assert {(1 << count) - 1 for count in range(problem.num_nodes + 1)} <= set(cuts)


def find_best_bottleneck(problem: Problem, cuts: list[int], num_parts: int) -> float:
    """The lightest heaviest part along the cuts, by trying every chain."""
    work = measure_times(problem).work
    weight = {
        cut: sum(float(work[v]) for v in range(problem.num_nodes) if cut >> v & 1) for cut in cuts
    }
    best = {0: 0.0}
    for _ in range(num_parts):
        grown: dict[int, float] = {}
        for a, value in best.items():
            for d in cuts:
                if a & ~d == 0:
                    load = max(value, weight[d] - weight[a])
                    grown[d] = min(grown.get(d, load), load)
        best = grown
    return best[(1 << problem.num_nodes) - 1]


@pytest.mark.parametrize("num_parts", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_cuts_hold_nearly_the_best_balance_of_all(seed: int, num_parts: int) -> None:
    """Against all down-sets of a small prime; the given order alone is no better."""
    problem = make_layers(seed, width=4, depth=3)
    every = enumerate_downsets(problem.predecessors, problem.successors, limit=10**6)
    assert every is not None
    chosen = choose_cuts(make_line(problem), problem.edges)
    prefixes = [(1 << count) - 1 for count in range(problem.num_nodes + 1)]
    found = find_best_bottleneck(problem, chosen, num_parts)
    assert found <= find_best_bottleneck(problem, prefixes, num_parts)
    assert found <= 1.1 * find_best_bottleneck(problem, every, num_parts)


def test_only_large_primes_are_enriched() -> None:
    """A chain has nothing to enrich; a wide prime gets cuts besides those of its order."""
    problem = make_layers(0, width=6, depth=6)
    line = make_line(problem)
    nothing = (None,) * line.num_items
    assert list_down_sets(line.num_items, problem.edges, most=MAX_CUTS) is None
    assert enrich_shape(Shape("chain", line, nothing)) is None
    plain = Shape("prime", line, nothing, problem.edges)
    rich = enrich_shape(plain)
    assert plain.lattice is None
    assert rich is not None
    assert rich.lattice is not None
    assert rich.lattice.num_items > line.num_items
    assert rich.twin != plain.twin


def test_more_cuts_are_never_worse_and_repeatable() -> None:
    """The best appraised draft of the dynamic program, with and without, and twice."""
    problem = make_grid()

    def find(max_enriched: int) -> float:
        cost = CostModel(problem)
        search = CandidateSearch(
            cost,
            Appraiser(cost),
            measure_times(problem),
            max_items=64,
            max_settings=3,
            max_enriched=max_enriched,
        )
        return min(candidate.step_s for candidate in search.run())

    assert find(3) <= find(0)
    assert find(3) == find(3)


def test_answers_for_a_grid_pass_the_referee() -> None:
    """With an effort from which on primes are enriched."""
    problem = make_grid(gpus=4)
    answer = ask(problem, "graph", effort=ENRICHED_FROM)
    assert check_stages(make_model(problem), answer.stages).is_legal
    assert answer.bound.step_s <= answer.step_s
