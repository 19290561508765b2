"""A first cut for max-load: the best chain through the prefixes of a few orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy

from graphplan.partition.dag.downsets import list_prefixes
from graphplan.partition.dag.linear import list_orders, make_blocks
from graphplan.partition.maxload.maxload import MaxLoad
from tools.maxload.cover import Chain, Family, find_chain

NUM_RANDOM = 3
QUICK_PREFIXES, MAX_PREFIXES = 100, 400
"""Prefixes that are kept of one order: of the first one alone, and of each when there are many."""


def find_incumbent(problem: MaxLoad, *, seed: int = 0) -> Chain | None:
    """A good chain, None when no mixture of these orders fits memory.

    The first order alone gives a target, with which all orders together are searched faster.
    """
    quick = Family(problem, list(_list_prefixes(problem, 1, QUICK_PREFIXES, seed)))
    first = find_chain(quick, problem.num_parts, math.inf)
    family = Family(problem, list(_list_prefixes(problem, None, MAX_PREFIXES, seed)))
    target_s = math.inf if first is None else first.value_s
    return find_chain(family, problem.num_parts, target_s) or first


def _list_prefixes(
    problem: MaxLoad, num_orders: int | None, max_prefixes: int, seed: int
) -> Iterator[int]:
    """Down-sets along several orders, at places where little crosses."""
    tensors = [(tuple(tensor.ends), tensor.seconds) for tensor in problem.tensors]
    work = numpy.array([op.seconds for op in problem.ops])
    orders = list_orders(
        problem.predecessors, problem.successors, tensors, num_random=NUM_RANDOM, seed=seed
    )
    for order in itertools.islice(orders, num_orders):
        yield from _block_prefixes(make_blocks(order, work, tensors, max_blocks=max_prefixes))


def _block_prefixes(blocks: Sequence[Sequence[int]]) -> Iterator[int]:
    ends = set(itertools.accumulate(map(len, blocks)))
    prefixes = list_prefixes([node for block in blocks for node in block])
    return (prefix for size, prefix in enumerate(prefixes) if size in ends)
