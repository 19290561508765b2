"""Decomposition of a partial order into series, parallel and prime modules.

A module is a set of nodes that every node outside sees alike: before all of it, after all of it, or
beside all of it. `Series` children come one wholly before the next, `Parallel` children are not
ordered at all, and the children of a `Prime` are ordered by the edges that it carries. The tree
composes back to exactly the order that went in.

Two steps. *Bottom up*, on the transitive reduction, until nothing changes: a node and its only
successor, when it is that one's only predecessor, are in series; nodes with equal neighbours are in
parallel. This finds every series-parallel module (Valdes, Tarjan and Lawler 1982) in about linear
time. *Top down*, on what is left: cuts that every path crosses from all maximal to all minimal
nodes, connected components, and for the rest the maximal modules by partition refinement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphplan.nouns.base import Noun
from graphplan.nouns.dag import collect_neighbours
from graphplan.partition.dag.modules import split_prime
from graphplan.partition.dag.order import Order, Pairs, reduce_edges
from graphplan.partition.dag.reduction import Module, reduce_modules


class Leaf(Noun, frozen=True):
    """One node."""

    node: int


class Series(Noun, frozen=True):
    """Every node of a child is before every node of the next child."""

    children: tuple[Tree, ...]


class Parallel(Noun, frozen=True):
    """No order between the nodes of different children."""

    children: tuple[Tree, ...]


class Prime(Noun, frozen=True):
    """Children, in a topological order, with the transitive reduction of the order among them."""

    children: tuple[Tree, ...]
    edges: Pairs


Tree = Leaf | Series | Parallel | Prime


def decompose_order(order: Order) -> Tree:
    """The tree of modules of an order with at least one node."""
    modules, covers = reduce_modules(order)
    return _split([_freeze(module) for module in modules], covers)


def decompose_edges(num_nodes: int, edges: Sequence[tuple[int, int]]) -> Tree:
    """The tree of modules of a DAG whose nodes are numbered in a topological order."""
    return decompose_order(reduce_edges(num_nodes, edges))


def iterate_leaves(tree: Tree) -> Iterator[int]:
    """The nodes of a tree, in a topological order: child by child."""
    waiting = [tree]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, Leaf):
            yield tree.node
        else:
            waiting.extend(reversed(tree.children))


def find_primes(tree: Tree) -> list[Prime]:
    """The prime modules of a tree, outer ones first."""
    found, waiting = [], [tree]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, Prime):
            found.append(tree)
        if not isinstance(tree, Leaf):
            waiting.extend(reversed(tree.children))
    return found


# -- bottom up: the contracted modules as trees ----------------------------------------------------


def _freeze(module: Module) -> Tree:
    """The tree of a contracted module; nesting may be deep, so this keeps its own stack."""
    done: list[Tree] = []
    waiting: list[tuple[Module, bool]] = [(module, False)]
    while waiting:
        each, visited = waiting.pop()
        if each[0] == "leaf":
            done.append(Leaf(each[1]))
        elif not visited:
            waiting.append((each, True))
            waiting.extend((child, False) for child in reversed(each[1]))
        else:
            first = len(done) - len(each[1])
            done[first:] = [_compose(each[0], done[first:])]
    return done[0]


def _compose(kind: str, children: list[Tree]) -> Tree:
    """A series or parallel module with children of its own kind dissolved into it."""
    made: type[Series] | type[Parallel] = Series if kind == "series" else Parallel
    flat: list[Tree] = []
    for child in children:
        flat.extend(child.children if isinstance(child, made) else [child])
    if made is Parallel:
        flat.sort(key=_first_node)
    return made(tuple(flat))


def _first_node(tree: Tree) -> int:
    return next(iterate_leaves(tree))


# -- top down: what the contraction leaves ---------------------------------------------------------


def _split(items: list[Tree], covers: Pairs) -> Tree:
    """The tree of modules whose leaves are `items`, ordered by `covers`."""
    if len(items) == 1:
        return items[0]
    for kind, pieces in (
        ("parallel", _list_components(len(items), covers)),
        ("series", _list_segments(len(items), covers)),
    ):
        if len(pieces) > 1:
            return _compose(kind, _split_pieces(items, covers, pieces)[0])
    modules = split_prime(len(items), covers)
    children, between = _split_pieces(items, covers, modules)
    return Prime(children=tuple(children), edges=between)


def _split_pieces(
    items: Sequence[Tree], covers: Pairs, pieces: Sequence[Sequence[int]]
) -> tuple[list[Tree], Pairs]:
    """The tree of each piece (a list of positions in `items`), and the covers between pieces."""
    place = {node: (p, i) for p, piece in enumerate(pieces) for i, node in enumerate(piece)}
    inner: list[list[tuple[int, int]]] = [[] for _ in pieces]
    between = set()
    for a, b in covers:
        (piece, i), (other, j) = place[a], place[b]
        if piece == other:
            inner[piece].append((i, j))
        else:
            between.add((piece, other))
    trees = [
        _split([items[node] for node in piece], tuple(inner[p])) for p, piece in enumerate(pieces)
    ]
    return trees, tuple(sorted(between))


def _list_components(num_nodes: int, covers: Pairs) -> list[list[int]]:
    """Connected components, each sorted."""
    root = list(range(num_nodes))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = node = root[root[node]]
        return node

    for a, b in covers:
        root[find(a)] = find(b)
    members: dict[int, list[int]] = {}
    for node in range(num_nodes):
        members.setdefault(find(node), []).append(node)
    return list(members.values())


def _list_segments(num_nodes: int, covers: Pairs) -> list[list[int]]:
    """Runs of nodes between the cuts at which everything before is before everything after.

    Sweeping a topological order, a cut is such a one exactly if the covers that cross it join every
    maximal node before it with every minimal node after it, and no other.
    """
    before = collect_neighbours(num_nodes, ((b, a) for a, b in covers))
    after = collect_neighbours(num_nodes, covers)
    open_after = [len(each) for each in after]  # covers from a swept node across the cut
    swept_before = [0] * num_nodes  # covers across the cut into a node that is still to come
    is_maximal = [True] * num_nodes
    num_maximal, num_minimal = 0, sum(not each for each in before)
    crossing = from_inner = into_inner = 0
    segments: list[list[int]] = [[]]
    for node in range(num_nodes):
        segments[-1].append(node)
        num_maximal, num_minimal = num_maximal + 1, num_minimal - 1
        crossing += len(after[node]) - len(before[node])
        for other in before[node]:
            open_after[other] -= 1
            from_inner += open_after[other] if is_maximal[other] else -1
            num_maximal -= is_maximal[other]
            is_maximal[other] = False
        for other in after[node]:
            swept_before[other] += 1
            is_minimal = swept_before[other] == len(before[other])
            into_inner += 1 - swept_before[other] if is_minimal else 1
            num_minimal += is_minimal
        complete_join = crossing == num_maximal * num_minimal and not from_inner + into_inner
        if complete_join and node + 1 < num_nodes:
            segments.append([])
    return segments
