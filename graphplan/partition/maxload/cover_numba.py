"""The inner loops of cover.py, compiled: the same sums in the same order, hence equal results."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from graphplan.jit import compile_loop
from graphplan.nouns.problem import Ints

NEVER = 1 << 62


@compile_loop
def reach_compiled(
    first: int,
    last: int,
    sets: tuple[NDArray[numpy.uint64], Ints, Ints, Ints, Ints],
    tensors: tuple[NDArray[numpy.int16], NDArray[numpy.bool_], Ints],
    limits: tuple[int, int],
    found: tuple[Ints, Ints, Ints],
    num_reached: int,
) -> int:
    """`_Search.reach` for the down-sets first .. last - 1; returns how many are reached now."""
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
