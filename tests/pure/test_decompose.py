"""Decomposition of DAGs into series, parallel and prime modules."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.partition.dag.decompose import (
    Leaf,
    Parallel,
    Prime,
    Series,
    Tree,
    decompose_edges,
    find_primes,
    iterate_leaves,
)
from graphplan.partition.dag.modules import list_bits
from graphplan.partition.dag.order import reduce_edges, restrict_order

Edges = list[tuple[int, int]]


@st.composite
def small_dags(draw: st.DrawFn, *, max_nodes: int = 7) -> tuple[int, Edges]:
    """Any DAG of a few nodes."""
    count = draw(st.integers(1, max_nodes))
    pairs = list(itertools.combinations(range(count), 2))
    chosen = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    return count, [pair for pair, taken in zip(pairs, chosen, strict=True) if taken]


def make_series_parallel(words: random.Random, count: int) -> tuple[set[tuple[int, int]], Tree]:
    """All ordered pairs of a random series-parallel order of nodes 0..count-1, and its tree."""

    def build(first: int, size: int, kind: str) -> tuple[set[tuple[int, int]], Tree]:
        if size == 1:
            return set(), Leaf(first)
        num = words.randint(2, min(size, 4))
        cuts = [first, *sorted(words.sample(range(first + 1, first + size), num - 1)), first + size]
        other = "parallel" if kind == "series" else "series"
        parts = [build(a, b - a, other) for a, b in itertools.pairwise(cuts)]
        pairs = set().union(*(pairs for pairs, _ in parts))
        if kind == "series":
            spans = list(itertools.pairwise(cuts))
            for (a, b), (c, d) in itertools.combinations(spans, 2):
                pairs |= set(itertools.product(range(a, b), range(c, d)))
        children = tuple(tree for _, tree in parts)
        return pairs, Series(children) if kind == "series" else Parallel(children)

    return build(0, count, words.choice(["series", "parallel"]))


def list_order(tree: Tree) -> set[tuple[int, int]]:
    """All ordered pairs that a tree composes to."""
    if isinstance(tree, Leaf):
        return set()
    found = set().union(*(list_order(child) for child in tree.children))
    leaves = [list(iterate_leaves(child)) for child in tree.children]
    if isinstance(tree, Series):
        between = set(itertools.combinations(range(len(leaves)), 2))
    elif isinstance(tree, Prime):
        inner = reduce_edges(len(leaves), tree.edges)
        between = {(a, b) for b, bits in enumerate(inner.before) for a in list_bits(bits)}
    else:
        between = set()
    for a, b in between:
        found |= set(itertools.product(leaves[a], leaves[b]))
    return found


def list_down_sets(count: int, pairs: set[tuple[int, int]]) -> set[frozenset[int]]:
    """Sets that contain, with a node, everything before it."""
    return {
        frozenset(chosen)
        for size in range(count + 1)
        for chosen in itertools.combinations(range(count), size)
        if all(a in chosen for a, b in pairs if b in chosen)
    }


@given(small_dags())
def test_down_sets_of_the_tree_are_those_of_the_graph(dag: tuple[int, Edges]) -> None:
    """Composing the tree gives back every down-set, hence every linear extension."""
    count, edges = dag
    tree = decompose_edges(count, edges)
    assert sorted(iterate_leaves(tree)) == list(range(count))
    assert list_down_sets(count, list_order(tree)) == list_down_sets(count, set(edges))


@given(small_dags(max_nodes=14))
def test_order_of_the_tree_is_that_of_the_graph(dag: tuple[int, Edges]) -> None:
    """Composing the tree gives back every ordered pair."""
    count, edges = dag
    before = reduce_edges(count, edges).before
    expected = {(a, b) for b, bits in enumerate(before) for a in list_bits(bits)}
    assert list_order(decompose_edges(count, edges)) == expected


@given(small_dags(max_nodes=9))
def test_children_of_a_prime_are_the_maximal_modules(dag: tuple[int, Edges]) -> None:
    """No two or more children of a prime, short of all, form a module of its quotient."""
    for prime in find_primes(decompose_edges(*dag)):
        count = len(prime.children)
        assert count >= 4
        before = reduce_edges(count, prime.edges).before
        for size in range(2, count):
            for chosen in itertools.combinations(range(count), size):
                assert not is_module(before, set(chosen))


def is_module(before: tuple[int, ...], chosen: set[int]) -> bool:
    """Whether every other node sees the chosen ones alike."""
    views = [
        {(before[v] >> x & 1, before[x] >> v & 1) for v in chosen}
        for x in range(len(before))
        if x not in chosen
    ]
    return all(len(view) == 1 for view in views)


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_series_parallel_orders_decompose_fully(seed: int, count: int) -> None:
    """A random series-parallel order gives exactly the tree that it was made from."""
    pairs, tree = make_series_parallel(random.Random(seed), count)
    assert decompose_edges(count, sorted(pairs)) == tree


def test_skips_of_a_u_net_are_no_branches() -> None:
    """Edges that other paths imply do not count: a U-Net is a chain."""
    edges = [(i, i + 1) for i in range(7)] + [(0, 7), (1, 6), (2, 5)]
    assert decompose_edges(8, edges) == Series(tuple(Leaf(i) for i in range(8)))


def test_n_shape_is_prime() -> None:
    """The smallest order that is not series-parallel."""
    edges = ((0, 2), (1, 2), (1, 3))
    assert decompose_edges(4, edges) == Prime(tuple(Leaf(i) for i in range(4)), edges)


def test_prime_modules_nest() -> None:
    """An N whose last node is itself an N, fed by two chains in parallel and followed by a node."""
    inner = [(3, 5), (4, 5), (4, 6)]
    outer = [(0, 2), (1, 2), *((1, v) for v in range(3, 7)), *((v, 7) for v in range(2, 7))]
    assert decompose_edges(8, inner + outer) == Series(
        (
            Prime(
                (
                    Leaf(0),
                    Leaf(1),
                    Leaf(2),
                    Prime(tuple(Leaf(v) for v in range(3, 7)), ((0, 2), (1, 2), (1, 3))),
                ),
                ((0, 2), (1, 2), (1, 3)),
            ),
            Leaf(7),
        )
    )


def test_complete_join_is_a_series() -> None:
    """Three nodes that all feed three others, the first of which are N-shaped each."""
    edges = [(0, 2), (1, 2), (1, 3)] + [(4, 6), (5, 6), (5, 7)]
    edges += [(a, b) for a in range(4) for b in range(4, 8)]
    shape = ((0, 2), (1, 2), (1, 3))
    assert decompose_edges(8, edges) == Series(
        (
            Prime(tuple(Leaf(v) for v in range(4)), shape),
            Prime(tuple(Leaf(v) for v in range(4, 8)), shape),
        )
    )


@pytest.mark.parametrize("count", [5000])
def test_deep_nesting_needs_no_deep_stack(count: int) -> None:
    """A comb, in which every node forks a leaf and the rest, nests as deep as it is long."""
    edges = [(v, v + 1) for v in range(0, count - 2, 2)] + [
        (v, v + 2) for v in range(0, count - 2, 2)
    ]
    tree = decompose_edges(count, edges)
    assert sum(1 for _ in iterate_leaves(tree)) == count
    assert find_primes(tree) == []


@given(small_dags(), st.data())
def test_restriction_keeps_paths_through_dropped_nodes(
    dag: tuple[int, Edges], data: st.DataObject
) -> None:
    """Two kept nodes are ordered among the kept ones exactly if they were in the whole order."""
    order = reduce_edges(*dag)
    kept = sorted(data.draw(st.sets(st.integers(0, dag[0] - 1))))
    restricted = restrict_order(order, kept)
    for i, a in enumerate(kept):
        for j, b in enumerate(kept):
            assert (restricted.before[j] >> i & 1) == (order.before[b] >> a & 1)
