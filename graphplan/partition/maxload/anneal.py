"""Simulated annealing for max-load: ops move between parts, one or a few at a time.

For graphs with too many down-sets. A move takes one op to any part between those of its neighbours,
or to the next part with all ops that are in its way. The prefixes of what is found are down-sets
that the dynamic program can mix with others (corridor.py). Moves are counted, so that the result
does not depend on the machine unless the clock ends the search.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy

from graphplan.nouns.maxload import MaxLoad
from graphplan.nouns.problem import Floats, Ints
from graphplan.partition.maxload.cover import NEVER, Chain, IsLate

HOT, COLD = 1.0, 0.003
"""Temperatures of a run; the energy of an even cut is about the number of parts."""
MAX_GROUP = 24
"""Ops that move together, at most."""
CHUNKS = 40
"""Looks at the clock in one run."""


class Annealer:
    """The arrays of one problem."""

    def __init__(self, problem: MaxLoad) -> None:
        self.problem = problem
        seconds: dict[frozenset[int], float] = {}
        for tensor in problem.tensors:
            if tensor.seconds > 0 and len(tensor.ends) > 1:
                seconds[tensor.ends] = seconds.get(tensor.ends, 0.0) + tensor.seconds
        self.tensor_ends = [tuple(sorted(ends)) for ends in seconds]
        self.weights = (
            numpy.array([op.seconds for op in problem.ops]),
            numpy.array([op.bytes for op in problem.ops], dtype=numpy.int64),
            numpy.array(list(seconds.values()), dtype=float),
            numpy.array([len(ends) for ends in seconds], dtype=numpy.int64),
        )
        touching: list[list[int]] = [[] for _ in problem.ops]
        for t, ends in enumerate(self.tensor_ends):
            for v in ends:
                touching[v].append(t)
        self.touching = _flatten(touching)
        self.after, self.before = _flatten(problem.successors), _flatten(problem.predecessors)
        limit = problem.memory_bytes
        self.limit_bytes = NEVER if limit is None else limit

    def run(
        self, chain: Chain, *, num_moves: int, seed: int, is_late: IsLate, hot: float = HOT
    ) -> Chain:
        """The best cut of one cooling from a cut; the cut itself if none is better."""
        # Here, because loading numba takes longer than many problems do.
        from graphplan.partition.maxload.anneal_numba import MODULUS, anneal_labels

        if chain.value_s == 0:
            return chain
        label = self._label(chain)
        best, best_s = label.copy(), chain.value_s
        ends, loads, sizes = self._measure(label)
        scratch = numpy.empty((2, MAX_GROUP), dtype=numpy.int64)
        state = numpy.array([seed * 7919 % (MODULUS - 1) + 1], dtype=numpy.int64)
        steps = numpy.geomspace(hot, COLD, CHUNKS + 1)
        for warm, cool in itertools.pairwise(steps.tolist()):
            if is_late():
                break
            best_s = anneal_labels(
                max(1, num_moves // CHUNKS),
                state,
                (warm, cool),
                chain.value_s,
                self.limit_bytes,
                label,
                best,
                self.weights,
                self.touching,
                self.after,
                self.before,
                ends,
                loads,
                sizes,
                *scratch,
                best_s,
            )
        return self._make_chain(best) if best_s < chain.value_s else chain

    def _label(self, chain: Chain) -> Ints:
        label = numpy.zeros(self.problem.num_ops, dtype=numpy.int64)
        for number, part in enumerate(chain.parts):
            label[list(part)] = number
        return label

    def _measure(self, label: Ints) -> tuple[Ints, Floats, Ints]:
        """Ends of every tensor in every part, loads and bytes of the parts."""
        num_parts = self.problem.num_parts
        op_s, op_bytes, tensor_s, num_ends = self.weights
        ends = numpy.zeros((len(tensor_s), num_parts), dtype=numpy.int64)
        for t, ops in enumerate(self.tensor_ends):
            numpy.add.at(ends[t], label[list(ops)], 1)
        crossing = (ends > 0) & (ends < num_ends[:, None])
        loads: Floats = numpy.bincount(label, op_s, num_parts) + tensor_s @ crossing
        sizes = numpy.zeros(num_parts, dtype=numpy.int64)
        numpy.add.at(sizes, label, op_bytes)
        return ends, loads, sizes

    def _make_chain(self, label: Ints) -> Chain:
        """The chain of the parts that are not empty; its value is summed anew."""
        downsets, inside = [], 0
        for part in range(self.problem.num_parts):
            members = numpy.flatnonzero(label == part).tolist()
            inside |= sum(1 << v for v in members)
            if members:
                downsets.append(inside)
        return Chain(tuple(downsets), float(self._measure(label)[1].max()))


def _flatten(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Where each list starts, and all of them in a row."""
    first = numpy.cumsum([0, *map(len, lists)])
    return first, numpy.array(list(itertools.chain.from_iterable(lists)), dtype=numpy.int64)
