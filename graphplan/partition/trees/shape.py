"""Shape: the decomposition of a problem, with interval tables at every level.

A *chain* is cut into intervals of its items; an item with a shape of its own may instead be cut
inside. A *parallel* shape has items that are independent of each other. A *prime* shape has items
with an order of their own; read as a chain, its items are in a topological order. Neighbouring
light items of a chain are merged first: a stage is much heavier than they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from graphplan.cost.cuts import Cuts, OrderCuts
from graphplan.cost.downsets import DownsetCuts
from graphplan.cost.model import CostModel
from graphplan.nouns.dag import collect_neighbours
from graphplan.partition.dag.decompose import Leaf, Parallel, Series, Tree, iterate_leaves
from graphplan.partition.dag.downsets import enumerate_downsets
from graphplan.partition.dag.fold import Folded
from graphplan.partition.dag.order import Pairs

MAX_CUTS = 160
"""Down-sets of a prime module up to which all of them are searched."""
MAX_DEPTH = 24
"""Modules nested deeper are cut as a chain of their nodes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    """A module that may be cut inside."""

    kind: Literal["chain", "parallel", "prime"]
    line: OrderCuts
    inner: tuple[Shape | None, ...]
    """For each item, how it may be cut; None for items that stay whole."""
    edges: Pairs = ()
    """Of a prime: the order of its items."""
    latency_share: float = 1.0
    """Of a chain that bundles independent branches: the share of its length that a micro-batch has
    to wait for."""

    @cached_property
    def lattice(self) -> DownsetCuts | None:
        """The cuts of a prime with few down-sets; others are cut along their order."""
        if self.kind != "prime":
            return None
        count = self.line.num_items
        before = collect_neighbours(count, ((dst, src) for src, dst in self.edges))
        after = collect_neighbours(count, self.edges)
        downsets = enumerate_downsets(before, after, limit=MAX_CUTS)
        return None if downsets is None else DownsetCuts(self.line.cost, self.line.items, downsets)

    @property
    def cuts(self) -> Cuts:
        """Where stages may begin and end."""
        return self.lattice if self.lattice is not None else self.line

    def list_steps(self) -> dict[int, list[tuple[int, int, Shape]]]:
        """By cut: the next cut, item and inner shape of every item that may be cut inside."""
        steps = (
            self.lattice.list_single_steps()
            if self.lattice is not None
            else [(i, i + 1, i) for i in range(self.line.num_items)]
        )
        found: dict[int, list[tuple[int, int, Shape]]] = {}
        for start, end, item in steps:
            inner = self.inner[item]
            if inner is not None:
                found.setdefault(start, []).append((end, item, inner))
        return found

    @cached_property
    def twin(self) -> int:
        """Equal for shapes that are cut alike: branches that differ in their names only."""
        inner = tuple(each.twin if each is not None else None for each in self.inner)
        return hash((self.kind, self.line.signature, inner, self.edges, self.latency_share))


def build_shape(
    cost: CostModel,
    folded: Folded,
    tree: Tree,
    *,
    max_items: int,
    min_share: float,
) -> Shape:
    """The shape of a tree over the groups of `folded`.

    A chain gets at most about `max_items` items; modules with less than `min_share` of all work
    stay whole.
    """
    min_work = min_share * float(cost.mean_times.weight.sum())
    builder = _Builder(cost, folded, max_items, min_work)
    if isinstance(tree, Leaf):
        return Shape("chain", builder.make_line([tree]), (None,))
    return builder.build(tree, MAX_DEPTH)


@dataclasses.dataclass(frozen=True)
class _Builder:
    cost: CostModel
    folded: Folded
    max_items: int
    min_work: float

    def build(self, tree: Tree, depth: int) -> Shape:
        """The shape of a module with children, `depth` levels of which may be cut inside."""
        assert not isinstance(tree, Leaf)
        if depth == 0:
            leaves = [Leaf(group) for group in iterate_leaves(tree)]
            return self._build_chain(leaves, depth)
        if isinstance(tree, Series):
            return self._build_chain(tree.children, depth)
        line = self.make_line(tree.children)
        inner = tuple(self._build_child(child, depth) for child in tree.children)
        if isinstance(tree, Parallel):
            return Shape("parallel", line, inner)
        return Shape("prime", line, inner, tree.edges)

    def _build_chain(self, children: Sequence[Tree], depth: int) -> Shape:
        runs = self._merge_light(children)
        line = OrderCuts(self.cost, [self._list_nodes(run) for run in runs])
        inner = (self._build_child(run[0], depth) if len(run) == 1 else None for run in runs)
        return Shape("chain", line, tuple(inner))

    def make_line(self, children: Sequence[Tree]) -> OrderCuts:
        """Cuts with one item for each child."""
        items = [self._list_nodes([child]) for child in children]
        return OrderCuts(self.cost, items)

    def _build_child(self, child: Tree, depth: int) -> Shape | None:
        heavy = not isinstance(child, Leaf) and self._weigh([child]) >= self.min_work
        return self.build(child, depth - 1) if heavy else None

    def _merge_light(self, children: Sequence[Tree]) -> list[list[Tree]]:
        """Neighbours in runs of at most the work of one item; what may be cut inside is alone."""
        limit = self._weigh(children) / self.max_items
        runs: list[list[Tree]] = []
        room = 0.0
        for child in children:
            work = self._weigh([child])
            alone = not isinstance(child, Leaf) and work >= self.min_work
            if work > room or alone:
                runs.append([])
                room = limit
            runs[-1].append(child)
            room = 0.0 if alone else room - work
        return runs

    def _weigh(self, trees: Sequence[Tree]) -> float:
        return float(self.cost.mean_times.weight[list(self._list_nodes(trees))].sum())

    def _list_nodes(self, trees: Sequence[Tree]) -> tuple[int, ...]:
        groups = (group for tree in trees for group in iterate_leaves(tree))
        return tuple(node for group in groups for node in self.folded.groups[group])
