"""Families of down-sets for pipelines: all of a folded graph, or a sample of a finer one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from graphplan.cost.downsets import DownsetCuts
from graphplan.cost.model import CostModel
from graphplan.nouns.dag import Neighbours, collect_neighbours
from graphplan.nouns.problem import Problem
from graphplan.partition.dag.downsets import enumerate_downsets, list_prefixes
from graphplan.partition.dag.fold import Groups, fold_nodes
from graphplan.partition.dag.linear import list_orders, weigh_flows

SHARES = (0.0, 1 / 512, 1 / 256, 1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8)
"""Work by which one node may grow in folding, as shares of all work, tried in turn."""
SAMPLED_SHARES = (0.0, 1 / 256, 1 / 128, 1 / 64, 1 / 32, 1 / 16)
NUM_RANDOM = 2
"""Random orders besides the usual ones."""


def list_all_cuts(cost: CostModel, *, limit: int) -> DownsetCuts | None:
    """Stages between all down-sets of the least folded graph that has few enough of them."""
    problem = cost.problem
    for share in SHARES:
        groups = _fold(problem, share)
        before, after = _link_groups(problem, groups)
        downsets = enumerate_downsets(before, after, limit=limit)
        if downsets is not None:
            return DownsetCuts(cost, groups, downsets)
    return None


def sample_cuts(cost: CostModel, *, limit: int, seed: int) -> DownsetCuts:
    """Stages between some down-sets: prefixes of several orders, their unions and intersections."""
    problem = cost.problem
    for share in SAMPLED_SHARES:
        groups = _fold(problem, share)
        if len(groups) <= limit // 4:
            break
    prefixes = sorted(set(_list_prefixes(problem, groups, seed)))
    rng = random.Random(seed)
    rng.shuffle(prefixes)
    found = {0, (1 << len(groups)) - 1, *prefixes[: limit - 2]}
    for a, b in itertools.combinations(prefixes, 2):
        if len(found) >= limit:
            break
        found |= {a | b, a & b}
    return DownsetCuts(cost, groups, sorted(found))


def _fold(problem: Problem, share: float) -> Groups:
    work = (problem.forward_s + problem.input_grad_s + problem.weight_grad_s)[0, -1].tolist()
    return fold_nodes(
        problem.num_nodes, problem.edges, work, max_share=share, pins=problem.pins
    ).groups


def _link_groups(problem: Problem, groups: Groups) -> tuple[Neighbours, Neighbours]:
    """Predecessors and successors of every group."""
    group_of = {node: g for g, group in enumerate(groups) for node in group}
    edges = {(group_of[src], group_of[dst]) for src, dst in problem.edges}
    different = [(src, dst) for src, dst in edges if src != dst]
    backward = [(dst, src) for src, dst in different]
    return collect_neighbours(len(groups), backward), collect_neighbours(len(groups), different)


def _list_prefixes(problem: Problem, groups: Groups, seed: int) -> Iterator[int]:
    group_of = {node: g for g, group in enumerate(groups) for node in group}
    tensors = [
        (sorted({group_of[end] for end in ends}), weight) for ends, weight in weigh_flows(problem)
    ]
    before, after = _link_groups(problem, groups)
    for order in list_orders(before, after, tensors, num_random=NUM_RANDOM, seed=seed):
        yield from list_prefixes(order)
