"""Maximal modules of an order that is neither a series nor a parallel composition.

Such an order has one coarsest partition into modules. For a node v, partition refinement finds the
maximal modules without v; those that do not belong to v's own module are maximal altogether, and
v's own one appears when the same is asked for a node w outside it. The smallest module with v and w
is everything exactly if w is outside. (Habib and Paul 2010 survey the technique.)
"""

from __future__ import annotations

from graphplan.partition.dag.order import Pairs, reduce_edges

MAX_REFINED = 512
"""Larger primes keep their nodes as children: correct, but perhaps not the coarsest tree."""


def split_prime(num_nodes: int, covers: Pairs) -> list[list[int]]:
    """The maximal modules as sorted lists of nodes, the earliest first."""
    if num_nodes > MAX_REFINED:
        return [[node] for node in range(num_nodes)]
    view = _View(num_nodes, covers)
    parts = view.refine(0)
    own = view.find_own(parts)
    modules = [own, *(part for part in parts if not part & own)]
    return sorted(list_bits(module) for module in modules)


def list_bits(bits: int) -> list[int]:
    """The nodes of a bit set, sorted."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


class _View:
    def __init__(self, num_nodes: int, covers: Pairs) -> None:
        self.everything = (1 << num_nodes) - 1
        self.before = reduce_edges(num_nodes, covers).before
        after = [0] * num_nodes
        for node, ancestors in enumerate(self.before):
            for other in list_bits(ancestors):
                after[other] |= 1 << node
        self.after = tuple(after)

    def refine(self, node: int) -> list[int]:
        """The maximal modules without `node`, as bit sets."""
        parts = self._split([self.everything & ~(1 << node)], node)
        waiting = list_bits(self.everything)
        while waiting:
            pivot = waiting.pop()
            outside = [part for part in parts if not part >> pivot & 1]
            found = self._split(outside, pivot)
            if len(found) == len(outside):
                continue
            parts = [part for part in parts if part >> pivot & 1] + found
            # A part that was split must also be seen alike by the nodes of its former other parts.
            broken = set(found) - set(outside)
            waiting += [v for part in broken for v in list_bits(part)]
        return parts

    def _split(self, parts: list[int], pivot: int) -> list[int]:
        """Split parts into those before, after and beside the pivot."""
        found = []
        before, after = self.before[pivot], self.after[pivot]
        for part in parts:
            pieces = (part & before, part & after, part & ~before & ~after)
            found += [piece for piece in pieces if piece]
        return found

    def find_own(self, parts: list[int]) -> int:
        """The maximal module of node 0, given the maximal modules without it."""
        for part in sorted(parts, reverse=True):
            other = part.bit_length() - 1
            if self._close(1 | 1 << other) == self.everything:
                return next(each for each in self.refine(other) if each & 1)
        return 1

    def _close(self, nodes: int) -> int:
        """The smallest module that contains the nodes."""
        pending, some_before, some_after = nodes, 0, 0
        all_before = all_after = self.everything
        while pending:
            for node in list_bits(pending):
                some_before |= self.before[node]
                some_after |= self.after[node]
                all_before &= self.before[node]
                all_after &= self.after[node]
            mixed = (some_before & ~all_before) | (some_after & ~all_after)
            pending = mixed & ~nodes
            nodes |= pending
        return nodes
