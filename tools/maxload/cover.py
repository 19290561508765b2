"""The best chain of down-sets of a family: the dynamic program for max-load.

A chain 0 = D0 < D1 < ... < Dk = all cuts the ops into the parts D1 - D0, D2 - D1, ... With all
down-sets as the family the result is the optimum (dnn-partitioning, Tarnawski et al. 2020); with
the prefixes of a few orders it is the best cut of these orders and all their mixtures.

Load of a part. A tensor *crosses* D when it has ends on both sides; c(D) sums the seconds of these.
The part D - A pays for the tensors that cross A or D, once each, less those that cross both and
have no end in between:

    load(A, D) = w(D) - w(A) + c(A) + c(D) - sum over t across both of s_t (1, or 2 if no end)

What makes it fast. A target T is given, and only chains whose loads stay within it matter. The p
parts up to D hold its work and pay for what crosses it, and so do the k - p parts after it:
w(D) + c(D) <= p T and W - w(D) + c(D) <= (k - p) T. Near the optimum few down-sets satisfy this for
any p, and fewer are reached by a chain; the others are not looked at.

Seconds are integers here, in units of about 1e-15 of all work: sums are exact, and a down-set
never weighs more than a larger one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from graphplan.jit import compile_loop
from graphplan.nouns.problem import Ints
from graphplan.partition.dag.downsets import list_members
from graphplan.partition.maxload.maxload import MaxLoad

RESOLUTION = 1 << 50
"""Units of all work and all tensors together."""
NEVER = 1 << 62
CHUNK = 4096
"""Down-sets that are unpacked to one number for each op at a time."""

Bits = NDArray[numpy.uint64]


@dataclasses.dataclass(frozen=True)
class Scale:
    """Seconds as whole units."""

    unit_s: float

    def units(self, seconds: float) -> int:
        """The nearest number of units; infinity is more than anything."""
        return NEVER if seconds == math.inf else round(seconds / self.unit_s)


class Family:
    """Down-sets of a max-load problem, sorted by work, the empty and the full one among them."""

    def __init__(self, problem: MaxLoad, downsets: Sequence[int]) -> None:
        self.problem = problem
        self._ends, tensor_s = _merge_tensors(problem)
        self._num_ends = self._ends.sum(axis=0)
        self.scale = Scale(max(problem.seconds + sum(tensor_s), 1e-300) / RESOLUTION)
        self.tensor_units = numpy.array([self.scale.units(s) for s in tensor_s], dtype=numpy.int64)
        unique = sorted({0, (1 << problem.num_ops) - 1, *downsets})
        bits = _pack_bits(unique, problem.num_ops)
        seconds = numpy.array([self.scale.units(op.seconds) for op in problem.ops])
        sizes = numpy.array([op.bytes for op in problem.ops])
        columns = numpy.stack([seconds, sizes, numpy.ones_like(seconds)], axis=1)
        work, num_bytes, count = _sum_members(bits, columns).T
        order = numpy.lexsort((count, work))
        self.bits: Bits = bits[order]
        self.work: Ints = work[order]
        self.bytes: Ints = num_bytes[order]
        self.downsets = [unique[i] for i in order]

    def select(self, num_parts: int, target: int) -> Selection | None:
        """The down-sets that may lie on a chain within the target, None when there is no chain."""
        total = self.work[-1]
        light = numpy.flatnonzero(_levels(self.work, total - self.work, num_parts, target))
        if not len(light):
            return None
        units = self.tensor_units.astype(float)
        chunks = []
        for first in range(0, len(light), CHUNK):
            chosen = light[first : first + CHUNK]
            inside = self._count_ends(chosen)
            crosses = (inside > 0) & (inside < self._num_ends)
            crossing = (crosses @ units).astype(numpy.int64)
            work = self.work[chosen]
            kept = _levels(work + crossing, total - work + crossing, num_parts, target)
            chunks.append((chosen[kept], inside[kept], crosses[kept], crossing[kept]))
        return Selection(*(numpy.concatenate(column) for column in zip(*chunks, strict=True)))

    def _count_ends(self, positions: Ints) -> NDArray[numpy.int16]:
        """[down-set, tensor]: ends of the tensor inside the down-set."""
        members = _unpack(self.bits[positions], self.problem.num_ops).astype(numpy.float32)
        return (members @ self._ends).astype(numpy.int16)


@dataclasses.dataclass(frozen=True)
class Selection:
    """Down-sets of a family, with the tensors that cross them."""

    positions: Ints
    inside: NDArray[numpy.int16]
    """[down-set, tensor]: ends inside the down-set."""
    crosses: NDArray[numpy.bool_]
    """[down-set, tensor]"""
    crossing: Ints
    """c(D)"""


def _levels(before: Ints, after: Ints, num_parts: int, target: int) -> NDArray[numpy.bool_]:
    """Whether some p parts suffice for what is before and num_parts - p for what is after."""
    unit = max(target, 1)
    return -(-before // unit) + -(-after // unit) <= num_parts


def find_chain(family: Family, num_parts: int, target_s: float) -> Chain | None:
    """The chain with the smallest largest load, None when none stays within the target."""
    search = open_search(family, num_parts, target_s)
    if search is None:
        return None
    search.reach(1, search.num_downsets)
    return search.trace_back()


def open_search(family: Family, num_parts: int, target_s: float) -> ChainSearch | None:
    """The search of `find_chain` before its first step, None when there is no chain to be found."""
    target = family.scale.units(target_s)
    selection = family.select(num_parts, target)
    return None if selection is None else ChainSearch(family, selection, num_parts, target)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Down-sets from the first part's to all ops, and the largest load."""

    downsets: tuple[int, ...]
    value_s: float

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Ops of every part."""
        pairs = itertools.pairwise((0, *self.downsets))
        return tuple(list_members(d & ~a) for a, d in pairs)


class ChainSearch:
    """State of one run: for every selected down-set and number of parts the smallest value."""

    def __init__(self, family: Family, selection: Selection, num_parts: int, target: int) -> None:
        self.family, self.num_parts, self.target = family, num_parts, target
        limit = family.problem.memory_bytes
        self.memory_bytes = NEVER if limit is None else limit
        self.chosen = selection.positions
        self.inside, self.crosses = selection.inside, selection.crosses
        self.crossing = selection.crossing
        self.work, self.bytes = family.work[self.chosen], family.bytes[self.chosen]
        self.bits = family.bits[self.chosen]
        unit = max(target, 1)
        self.most_parts = num_parts + (self.work - self.work[-1] - self.crossing) // unit
        num = len(self.chosen)
        self.best = numpy.full((num, num_parts + 1), NEVER, dtype=numpy.int64)
        self.parent = numpy.zeros((num, num_parts + 1), dtype=numpy.int64)
        self.best[0, 0] = 0
        # Those that some chain reaches, in order of work.
        self.reached = numpy.zeros(num, dtype=numpy.int64)
        self.num_reached = 1

    @property
    def num_downsets(self) -> int:
        """How many were selected; number 0 is the empty one."""
        return len(self.chosen)

    def reach(self, first: int, last: int) -> None:
        """Find the best values of the down-sets first .. last - 1; those before must be known."""
        self.num_reached = reach_downsets(
            first,
            last,
            (self.bits, self.work, self.bytes, self.crossing, self.most_parts),
            (self.inside, self.crosses, self.family.tensor_units),
            (self.target, self.memory_bytes),
            (self.best, self.parent, self.reached),
            self.num_reached,
        )

    def trace_back(self) -> Chain | None:
        """The best chain to the full set, with any number of parts."""
        d = len(self.work) - 1
        parts = int(self.best[d].argmin())
        value = int(self.best[d, parts])
        if value >= NEVER:
            return None
        downsets = []
        while parts:
            downsets.append(self.family.downsets[self.chosen[d]])
            d, parts = int(self.parent[d, parts]), parts - 1
        return Chain(tuple(reversed(downsets)), value * self.family.scale.unit_s)


def _merge_tensors(problem: MaxLoad) -> tuple[NDArray[numpy.float32], list[float]]:
    """[op, tensor]: 1 at the ends, and seconds; tensors with equal ends count as one."""
    seconds_by_ends: dict[frozenset[int], float] = {}
    for tensor in problem.tensors:
        if tensor.seconds > 0 and len(tensor.ends) > 1:
            seconds_by_ends[tensor.ends] = seconds_by_ends.get(tensor.ends, 0.0) + tensor.seconds
    ends = numpy.zeros((problem.num_ops, len(seconds_by_ends)), dtype=numpy.float32)
    for t, ops in enumerate(seconds_by_ends):
        ends[list(ops), t] = 1
    return ends, list(seconds_by_ends.values())


def _pack_bits(downsets: Sequence[int], num_ops: int) -> Bits:
    """[down-set, word] of 64 ops each."""
    words = -(-num_ops // 64)
    text = b"".join(downset.to_bytes(words * 8, "little") for downset in downsets)
    return numpy.frombuffer(text, dtype="<u8").reshape(len(downsets), words).astype(numpy.uint64)


def _sum_members(bits: Bits, columns: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Sums of the columns [op, column] over the members of every down-set, exactly.

    Products run in floating point, which is much faster: numbers are split into halves that are
    small enough for exact sums.
    """
    low, high = (columns & 0x3FFFFFF).astype(float), (columns >> 26).astype(float)
    results = []
    for first in range(0, len(bits), CHUNK):
        members = _unpack(bits[first : first + CHUNK], len(columns)).astype(float)
        lower, upper = (members @ low).astype(numpy.int64), (members @ high).astype(numpy.int64)
        results.append(lower + (upper << 26))
    return numpy.concatenate(results)


def _unpack(bits: Bits, num_ops: int) -> NDArray[numpy.uint8]:
    """[down-set, op] of zeros and ones."""
    return numpy.unpackbits(bits.view(numpy.uint8), axis=1, count=num_ops, bitorder="little")


@compile_loop
def reach_downsets(
    first: int,
    last: int,
    sets: tuple[NDArray[numpy.uint64], Ints, Ints, Ints, Ints],
    tensors: tuple[NDArray[numpy.int16], NDArray[numpy.bool_], Ints],
    limits: tuple[int, int],
    found: tuple[Ints, Ints, Ints],
    num_reached: int,
) -> int:
    """`ChainSearch.reach`; returns how many are reached now."""
    bits, work, num_bytes, crossing, most_parts = sets
    inside, crosses, tensor_units = tensors
    target, memory_bytes = limits
    best, parent, reached = found
    num_parts, num_words = best.shape[1] - 1, bits.shape[1]
    across = numpy.empty(len(tensor_units), dtype=numpy.int64)
    low = 0
    for d in range(first, last):
        num_across = 0
        for t in range(len(tensor_units)):
            if crosses[d, t]:
                across[num_across] = t
                num_across += 1
        while low < num_reached and work[reached[low]] < work[d] - target:
            low += 1
        top = min(num_parts, max(0, most_parts[d]))
        for r in range(low, num_reached):
            a = reached[r]
            # Tensors across one of the two are paid whatever is in between.
            if work[d] - work[a] + abs(crossing[d] - crossing[a]) > target:
                continue
            helps = False
            for p in range(top):
                if best[a, p] < best[d, p + 1]:
                    helps = True
                    break
            if not helps:
                continue
            inner = True
            for word in range(num_words):
                if bits[a, word] & ~bits[d, word]:
                    inner = False
                    break
            if not inner or num_bytes[d] - num_bytes[a] > memory_bytes:
                continue
            load = work[d] - work[a] + crossing[d] + crossing[a]
            for i in range(num_across):
                t = across[i]
                if crosses[a, t]:
                    load -= tensor_units[t]
                    if inside[a, t] == inside[d, t]:
                        load -= tensor_units[t]
            if load > target:
                continue
            for p in range(top):
                value = max(best[a, p], load)
                if value < best[d, p + 1]:
                    best[d, p + 1] = value
                    parent[d, p + 1] = a
        for p in range(top):
            if best[d, p + 1] < NEVER:
                reached[num_reached] = d
                num_reached += 1
                break
    return num_reached
