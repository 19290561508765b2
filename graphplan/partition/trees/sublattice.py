"""Sublattice: good cuts of a prime module that has too many down-sets to search them all.

For several numbers of parts, and for light and for heavy tensors, the module is cut into parts with
the least largest load: the best cut along a few orders is annealed and then handed to CP-SAT as a
hint (ilp.py), both within counted work. Each of these cuts is also an order, part by part; its
prefixes where little crosses are down-sets between the borders. With the prefixes of the given
order they make a family of down-sets that the dynamic program searches exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from graphplan.errors import SearchLimit
from graphplan.partition.dag.downsets import list_prefixes
from graphplan.partition.dag.linear import make_blocks
from graphplan.partition.dag.order import Pairs
from graphplan.partition.ilp import solve_contracted
from graphplan.partition.maxload.anneal import Annealer
from graphplan.partition.maxload.cover import Chain
from graphplan.partition.maxload.incumbent import find_incumbent
from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad
from graphplan.partition.trees.line import Line

NUM_PARTS = (2, 4, 8)
"""Cuts are made for each of these numbers."""
TENSOR_SHARES = (0.1, 1.0)
"""Seconds of all tensors over those of all work: balance matters, or what crosses does."""
NUM_MOVES = 100_000
"""Of annealing, for each cut."""
EFFORT = 0.02
"""Deterministic seconds of CP-SAT, for each cut."""
MAX_ITEMS = 250
"""Larger modules keep to their order: tables have an entry for each pair of cuts."""
NUM_BLOCKS = 24
"""Prefixes of each order."""
MAX_ADDED = 100
"""Down-sets besides the prefixes of the given order."""


def choose_cuts(line: Line, edges: Pairs, *, seed: int = 0) -> list[int]:
    """Down-sets of the items, small ones first, the empty and the full one among them."""
    found = dict.fromkeys(list_prefixes(range(line.num_items)))
    borders: dict[int, None] = {}
    inner: dict[int, None] = {}
    for share, num_parts in itertools.product(TENSOR_SHARES, NUM_PARTS):
        if num_parts >= line.num_items:
            continue
        posed = _pose(line, edges, num_parts, share)
        parts = _cut(posed, seed)
        borders.update(dict.fromkeys(_list_borders(parts)))
        inner.update(dict.fromkeys(_list_between(posed, parts)))
    mixed = (each for a, b in itertools.combinations(borders, 2) for each in (a | b, a & b))
    added = (each for each in dict.fromkeys((*borders, *inner, *mixed)) if each not in found)
    found.update(dict.fromkeys(itertools.islice(added, MAX_ADDED)))
    return sorted(found, key=lambda each: (each.bit_count(), each))


def _pose(line: Line, edges: Pairs, num_parts: int, tensor_share: float) -> MaxLoad:
    """The module as a max-load problem of its items."""
    work = [float(line.times.work[list(item)].sum()) for item in line.items]
    total = sum(work) or 1.0
    tensors: list[tuple[int, tuple[int, ...], float]] = []
    for flow in line.problem.flows:
        owner = line.position.get(flow.owner) if flow.owner is not None else None
        inside = {line.position[node] for node in flow.readers if node in line.position}
        readers = tuple(sorted(inside - {owner}))
        if owner is not None and readers:
            tensors.append((owner, readers, float(flow.bytes_by_size[-1])))
    moved = sum(weight for _, _, weight in tensors) or 1.0
    return MaxLoad(
        name=line.problem.name,
        ops=tuple(LoadOp(name=str(i), seconds=each / total) for i, each in enumerate(work)),
        edges=tuple(sorted(set(edges))),
        tensors=tuple(
            LoadTensor(owner=owner, readers=readers, seconds=tensor_share * weight / moved)
            for owner, readers, weight in tensors
        ),
        num_parts=num_parts,
    )


def _cut(posed: MaxLoad, seed: int) -> Sequence[Sequence[int]]:
    """Parts with a small largest load."""
    chain = find_incumbent(posed, seed=seed)
    assert chain is not None, "without a limit on memory there is a cut"
    chain = Annealer(posed).run(chain, num_moves=NUM_MOVES, seed=seed + 1)
    return _refine(posed, chain, seed)


def _refine(posed: MaxLoad, chain: Chain, seed: int) -> Sequence[Sequence[int]]:
    try:
        answer = solve_contracted(posed, seed=seed, hint=chain.parts, effort=EFFORT)
    except SearchLimit:
        return chain.parts
    return answer.parts


def _list_borders(parts: Sequence[Sequence[int]]) -> Iterator[int]:
    inside = 0
    for part in parts[:-1]:
        inside |= sum(1 << item for item in part)
        yield inside


def _list_between(posed: MaxLoad, parts: Sequence[Sequence[int]]) -> Iterator[int]:
    """Prefixes of the items in the order of their parts, where little crosses."""
    order = [item for part in parts for item in sorted(part)]
    tensors = [(tuple(tensor.ends), tensor.seconds) for tensor in posed.tensors]
    work = [op.seconds for op in posed.ops]
    inside = 0
    for block in make_blocks(order, work, tensors, max_blocks=NUM_BLOCKS):
        inside |= sum(1 << item for item in block)
        yield inside
