"""Simulated annealing for max-load: ops move between parts, one or a few at a time.

For graphs with too many down-sets. A move takes one op to any part between those of its neighbours,
or to the next part with all ops that are in its way. The prefixes of what is found are down-sets
that a dynamic program can mix with others. Moves are counted: the same seed gives the same cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy

from graphplan.jit import compile_loop
from graphplan.nouns.problem import Floats, Ints
from graphplan.partition.maxload.maxload import MaxLoad
from tools.maxload.cover import NEVER, Chain

HOT, COLD = 1.0, 0.003
"""Temperatures of a run; the energy of an even cut is about the number of parts."""
MAX_GROUP = 24
"""Ops that move together, at most."""
CHUNKS = 40
"""Times in one run that the energy is summed anew."""
MODULUS = 2147483647
"""Of the random numbers: Park and Miller's generator, whose products fit 64 bits."""


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

    def run(self, chain: Chain, *, num_moves: int, seed: int, hot: float = HOT) -> Chain:
        """The best cut of one cooling from a cut; the cut itself if none is better."""
        if chain.value_s == 0:
            return chain
        label = self._label(chain)
        best, best_s = label.copy(), chain.value_s
        ends, loads, sizes = self._measure(label)
        scratch = numpy.empty((2, MAX_GROUP), dtype=numpy.int64)
        state = numpy.array([seed * 7919 % (MODULUS - 1) + 1], dtype=numpy.int64)
        steps = numpy.geomspace(hot, COLD, CHUNKS + 1)
        for warm, cool in itertools.pairwise(steps.tolist()):
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


def raise_load(load: float) -> float:
    """The 16th power."""
    square = load * load
    fourth = square * square
    eighth = fourth * fourth
    return eighth * eighth


def move_op(
    v: int,
    to: int,
    label: Ints,
    loads: Floats,
    sizes: Ints,
    ends: Ints,
    weights: tuple[Floats, Ints, Floats, Ints],
    touching: tuple[Ints, Ints],
) -> None:
    """Move one op to another part and keep the loads up to date."""
    op_s, op_bytes, tensor_s, num_ends = weights
    first, tensors = touching
    source = label[v]
    label[v] = to
    loads[source] -= op_s[v]
    loads[to] += op_s[v]
    sizes[source] -= op_bytes[v]
    sizes[to] += op_bytes[v]
    for i in range(first[v], first[v + 1]):
        t = tensors[i]
        if ends[t, source] == 1:
            loads[source] -= tensor_s[t]
        elif ends[t, source] == num_ends[t]:
            loads[source] += tensor_s[t]
        ends[t, source] -= 1
        ends[t, to] += 1
        if ends[t, to] == 1:
            loads[to] += tensor_s[t]
        elif ends[t, to] == num_ends[t]:
            loads[to] -= tensor_s[t]


def gather_ops(
    v: int, to: int, label: Ints, first: Ints, others: Ints, up: bool, group: Ints
) -> int:
    """Ops that must move along with v, v first; how many, 0 if they are too many."""
    group[0] = v
    count, place = 1, 0
    while place < count:
        u = group[place]
        place += 1
        for i in range(first[u], first[u + 1]):
            w = others[i]
            if (up and label[w] < to) or (not up and label[w] > to):
                known = False
                for j in range(count):
                    if group[j] == w:
                        known = True
                        break
                if known:
                    continue
                if count == len(group):
                    return 0
                group[count] = w
                count += 1
    return count


@compile_loop
def anneal_labels(
    num_moves: int,
    state: Ints,
    temperatures: tuple[float, float],
    scale_s: float,
    limit_bytes: int,
    label: Ints,
    best: Ints,
    weights: tuple[Floats, Ints, Floats, Ints],
    touching: tuple[Ints, Ints],
    after: tuple[Ints, Ints],
    before: tuple[Ints, Ints],
    ends: Ints,
    loads: Floats,
    sizes: Ints,
    group: Ints,
    sources: Ints,
    best_s: float,
) -> float:
    """So many moves from `label`; the best labels go to `best`, their value is returned.

    The energy is the sum of the 16th powers of the loads: nearly the largest one, but smooth.
    """
    num, num_parts = len(label), len(loads)
    before_first, before_ops = before
    after_first, after_ops = after
    word = state[0]
    hot, cold = temperatures
    cooling = math.exp(math.log(cold / hot) / num_moves)
    warmth = hot
    energy = 0.0
    for p in range(num_parts):
        energy += raise_load(loads[p] / scale_s)
    for _ in range(num_moves):
        warmth *= cooling
        word = word * 48271 % MODULUS
        v = word % num
        low, high = 0, num_parts - 1
        for i in range(before_first[v], before_first[v + 1]):
            if label[before_ops[i]] > low:
                low = label[before_ops[i]]
        for i in range(after_first[v], after_first[v + 1]):
            if label[after_ops[i]] < high:
                high = label[after_ops[i]]
        word = word * 48271 % MODULUS
        source = label[v]
        if low < high:
            to = low + (word >> 8) % (high - low)
            if to >= source:
                to += 1
            group[0] = v
            count = 1
        else:
            up = (word >> 8) % 2 == 0
            to = source + 1 if up else source - 1
            if to < 0 or to >= num_parts:
                continue
            if up:
                count = gather_ops(v, to, label, after_first, after_ops, up, group)
            else:
                count = gather_ops(v, to, label, before_first, before_ops, up, group)
            if count == 0:
                continue
        for j in range(count):
            sources[j] = label[group[j]]
            move_op(group[j], to, label, loads, sizes, ends, weights, touching)
        fresh, largest, fits = 0.0, 0.0, True
        for p in range(num_parts):
            fresh += raise_load(loads[p] / scale_s)
            if loads[p] > largest:
                largest = loads[p]
            if sizes[p] > limit_bytes:
                fits = False
        word = word * 48271 % MODULUS
        chance = word / MODULUS
        if fits and (fresh <= energy or chance < math.exp((energy - fresh) / warmth)):
            energy = fresh
            if largest < best_s * (1 - 1e-12):
                best_s = largest
                for u in range(num):
                    best[u] = label[u]
        else:
            for j in range(count - 1, -1, -1):
                move_op(group[j], sources[j], label, loads, sizes, ends, weights, touching)
    state[0] = word
    return best_s
