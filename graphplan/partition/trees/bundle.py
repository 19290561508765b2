"""Bundles: parallel branches in fewer groups, each of which is cut as one chain.

Seven branches on eight devices leave one device idle, or one branch on two. As a single chain of
all their items, or as two, they can be cut evenly; a stage may then hold the end of one branch and
the start of the next. A single chain also becomes part of the chain around it, so that a stage may
hold the end of a branch and what comes after the branches.
"""

from __future__ import annotations

import dataclasses

from graphplan.cost.cuts import OrderCuts
from graphplan.partition.trees.shape import Shape


def bundle_shape(shape: Shape, num_groups: int) -> Shape:
    """The shape with the branches of every parallel module in at most `num_groups` groups."""
    inner = tuple(
        bundle_shape(each, num_groups) if each is not None else None for each in shape.inner
    )
    if shape.kind == "chain":
        return _inline_chains(dataclasses.replace(shape, inner=inner))
    if shape.kind == "prime" or shape.line.num_items <= num_groups:
        return dataclasses.replace(shape, inner=inner)
    groups = group_evenly([_weigh(shape, item) for item in shape.line.items], num_groups)
    chains = [_chain_items(shape, inner, group) for group in groups]
    if len(groups) == 1 and chains[0] is not None:
        return chains[0]
    items = [_join([shape.line.items[i] for i in group]) for group in groups]
    return Shape("parallel", OrderCuts(shape.line.cost, items), tuple(chains))


def _inline_chains(shape: Shape) -> Shape:
    """A chain with the items of the chains in it in their place."""
    if not any(each is not None and each.kind == "chain" for each in shape.inner):
        return shape
    items: list[tuple[int, ...]] = []
    cut_inside: list[Shape | None] = []
    for item, each in zip(shape.line.items, shape.inner, strict=True):
        if each is not None and each.kind == "chain":
            items += each.line.items
            cut_inside += each.inner
        else:
            items.append(item)
            cut_inside.append(each)
    return Shape("chain", OrderCuts(shape.line.cost, items), tuple(cut_inside))


def group_evenly(weights: list[float], num_groups: int) -> list[list[int]]:
    """Positions in groups of about equal weight: the heaviest first, each to the lightest group."""
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    totals = [0.0] * num_groups
    for position in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        lightest = min(range(num_groups), key=lambda g: (totals[g], g))
        groups[lightest].append(position)
        totals[lightest] += weights[position]
    return sorted(sorted(group) for group in groups if group)


def _chain_items(
    shape: Shape,
    inner: tuple[Shape | None, ...],
    group: list[int],
) -> Shape | None:
    """The items of several branches, one branch after the other."""
    if len(group) == 1:
        return inner[group[0]]
    items: list[tuple[int, ...]] = []
    cut_inside: list[Shape | None] = []
    for position in group:
        branch = inner[position]
        if branch is not None and branch.kind == "chain":
            items += branch.line.items
            cut_inside += branch.inner
        else:
            items.append(shape.line.items[position])
            cut_inside.append(branch)
    weights = [_weigh(shape, shape.line.items[position]) for position in group]
    share = max(weights) / sum(weights) if sum(weights) else 1.0
    line = OrderCuts(shape.line.cost, items)
    return Shape("chain", line, tuple(cut_inside), latency_share=share)


def _weigh(shape: Shape, nodes: tuple[int, ...]) -> float:
    return float(shape.line.cost.mean_times.work[list(nodes)].sum())


def _join(items: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(node for item in items for node in item)
