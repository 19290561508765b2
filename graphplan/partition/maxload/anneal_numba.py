"""The inner loop of anneal.py: compiled where numba is there, plain Python with the same result."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

from graphplan.jit import compile_loop
from graphplan.nouns.problem import Floats, Ints

MODULUS = 2147483647
"""Of the random numbers: Park and Miller's generator, whose products fit 64 bits."""


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    if importlib.util.find_spec("numba") is None:
        return function
    return compile_loop(function, error_model="numpy")


@_compile
def raise_load(load: float) -> float:
    """The 16th power."""
    square = load * load
    fourth = square * square
    eighth = fourth * fourth
    return eighth * eighth


@_compile
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


@_compile
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


@_compile
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
