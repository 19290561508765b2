"""Bottom-up reduction: contract series and parallel modules of a partial order until none is left.

Works on the transitive reduction, which stays one under these contractions. Nodes with equal
neighbours are found by a hash that is the exclusive or of their neighbours' random words, so that
one changed neighbour costs one operation; equality is then checked on the sets themselves.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Literal

from graphplan.partition.dag.order import Order, Pairs

Module = tuple[Literal["leaf"], int] | tuple[Literal["series", "parallel"], "deque[Module]"]


def reduce_modules(order: Order) -> tuple[list[Module], Pairs]:
    """Contracted modules in a topological order, and the covers between their positions."""
    work = _Contraction(order)
    work.run()
    kept = work.sort_kept()
    position = {node: i for i, node in enumerate(kept)}
    covers = sorted((position[a], position[b]) for a in kept for b in work.after[a])
    return [work.module[node] for node in kept], tuple(covers)


class _Contraction:
    def __init__(self, order: Order) -> None:
        rng = random.Random(0)
        count = order.num_nodes
        self.before: list[set[int]] = [set(each) for each in order.predecessors()]
        self.after: list[set[int]] = [set(each) for each in order.successors()]
        self.word = [rng.getrandbits(64) for _ in range(count)]
        self.hash_before = [self._hash(each) for each in self.before]
        self.hash_after = [self._hash(each) for each in self.after]
        self.module: dict[int, Module] = {v: ("leaf", v) for v in range(count)}
        self.node_by_hash: dict[tuple[int, int], int] = {}

    def _hash(self, nodes: set[int]) -> int:
        found = 0
        for node in nodes:
            found ^= self.word[node]
        return found

    def run(self) -> None:
        """Contract until neither a pair in series nor a pair in parallel is left."""
        waiting = deque(sorted(self.module))
        while waiting:
            node = waiting.popleft()
            if node not in self.module:
                continue
            partner = self._find_follower(node)
            if partner is not None:
                waiting.extend(self._join_series(node, partner))
                continue
            partner = self._find_twin(node)
            if partner is not None:
                waiting.extend(self._join_parallel(partner, node))

    def sort_kept(self) -> list[int]:
        """The remaining nodes in a topological order."""
        missing = {node: len(self.before[node]) for node in self.module}
        ready = deque(sorted(node for node, count in missing.items() if count == 0))
        found = []
        while ready:
            found.append(ready.popleft())
            for node in sorted(self.after[found[-1]]):
                missing[node] -= 1
                if missing[node] == 0:
                    ready.append(node)
        return found

    def _find_follower(self, node: int) -> int | None:
        if len(self.after[node]) != 1:
            return None
        (follower,) = self.after[node]
        return follower if len(self.before[follower]) == 1 else None

    def _find_twin(self, node: int) -> int | None:
        key = (self.hash_before[node], self.hash_after[node])
        other = self.node_by_hash.get(key)
        if other is None or other == node or other not in self.module:
            self.node_by_hash[key] = node
            return None
        if (self.hash_before[other], self.hash_after[other]) != key:
            self.node_by_hash[key] = node  # the other one has changed since it was entered
            return None
        same = self.before[other] == self.before[node] and self.after[other] == self.after[node]
        return other if same else None

    def _join_series(self, first: int, second: int) -> list[int]:
        """Contract an edge; the end with more outer neighbours keeps its number."""
        joined = _concatenate("series", self.module[first], self.module[second])
        if len(self.before[first]) >= len(self.after[second]):
            kept, gone = first, second
            moved = self.after[kept] = self.after[gone]
            self.hash_after[kept] = self.hash_after[gone]
            for node in moved:
                self._rename(self.before[node], self.hash_before, node, gone, kept)
        else:
            kept, gone = second, first
            moved = self.before[kept] = self.before[gone]
            self.hash_before[kept] = self.hash_before[gone]
            for node in moved:
                self._rename(self.after[node], self.hash_after, node, gone, kept)
        self.module[kept] = joined
        del self.module[gone]
        return [*sorted(moved), *sorted(self.before[kept]), kept]

    def _rename(
        self, neighbours: set[int], hashes: list[int], node: int, gone: int, kept: int
    ) -> None:
        neighbours.remove(gone)
        neighbours.add(kept)
        hashes[node] ^= self.word[gone] ^ self.word[kept]

    def _join_parallel(self, kept: int, gone: int) -> list[int]:
        """Drop one of two nodes with equal neighbours."""
        for node in self.before[gone]:
            self.after[node].remove(gone)
            self.hash_after[node] ^= self.word[gone]
        for node in self.after[gone]:
            self.before[node].remove(gone)
            self.hash_before[node] ^= self.word[gone]
        self.module[kept] = _concatenate("parallel", self.module[kept], self.module.pop(gone))
        return [*sorted(self.before[kept]), *sorted(self.after[kept]), kept]


def _concatenate(kind: Literal["series", "parallel"], first: Module, second: Module) -> Module:
    """The two modules as children of one, flattened; the smaller list moves."""
    left = _list_children(kind, first)
    right = _list_children(kind, second)
    if len(left) >= len(right):
        left.extend(right)
        return kind, left
    right.extendleft(reversed(left))
    return kind, right


def _list_children(kind: str, module: Module) -> deque[Module]:
    if module[0] == kind and module[0] != "leaf":
        return module[1]
    return deque([module])
