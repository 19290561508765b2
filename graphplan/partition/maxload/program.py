"""Max-load as an integer program, written once and solved by two programs (see ilp.py).

Ladder variables: y[v, j] = 1 when op v is in one of the parts 0 .. j. Labels that never fall along
edges are exactly the partitions whose quotient is acyclic, so that no convexity rows are needed.
v is in part j when y[v, j] - y[v, j-1] = 1 (y[v, -1] = 0, and y[v, k-1] = 1 is not a variable).
z[t, j] = 1 when part j pays for tensor t: when the owner is in the part and some reader is not, or
the other way round. Seconds are whole units.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from graphplan.partition.maxload.maxload import LoadTensor, MaxLoad

UNITS = 1 << 30
"""Units of the smallest possible value: rounding errs by about 1e-9 for an op."""

Terms = dict[int, int]
"""Coefficient by variable."""


@dataclasses.dataclass(frozen=True)
class Row:
    """sum of the terms + constant <= limit, plus the largest load if `is_load`."""

    terms: Terms
    limit: int
    is_load: bool = False


@dataclasses.dataclass(frozen=True)
class LoadProgram:
    """Minimise the largest load over 0/1 variables under the rows."""

    num_ladder: int
    """The first variables are the ladder; the others are z, which may be continuous."""
    num_variables: int
    rows: tuple[Row, ...]
    unit_s: float
    rounding: int
    """Units by which rounding may change a load."""


def write_program(problem: MaxLoad, *, unit_s: float) -> LoadProgram:
    """The rows of a max-load problem; at least two parts."""
    writer = _Writer(problem, unit_s)
    rows = [
        *writer.climb_ladders(),
        *writer.follow_edges(),
        *writer.charge_tensors(),
        *writer.limit_loads(),
        *writer.limit_memory(),
    ]
    return LoadProgram(
        num_ladder=problem.num_ops * (problem.num_parts - 1),
        num_variables=writer.num_variables,
        rows=tuple(rows),
        unit_s=unit_s,
        rounding=-(-(problem.num_ops + len(writer.tensors)) // 2),
    )


class _Writer:
    def __init__(self, problem: MaxLoad, unit_s: float) -> None:
        self.problem, self.unit_s = problem, unit_s
        self.rungs = problem.num_parts - 1
        self.tensors = [t for t in problem.tensors if t.seconds > 0 and len(t.ends) > 1]
        first = problem.num_ops * self.rungs
        self.num_variables = first + len(self.tensors) * problem.num_parts
        self.first_charge = first

    def rung(self, op: int, part: int) -> int:
        """The variable y[op, part]."""
        return op * self.rungs + part

    def charge(self, tensor: int, part: int) -> int:
        """The variable z[tensor, part]."""
        return self.first_charge + tensor * self.problem.num_parts + part

    def membership(self, op: int, part: int) -> tuple[Terms, int]:
        """Terms and constant of y[op, part] - y[op, part - 1]."""
        terms: Terms = {}
        if part > 0:
            terms[self.rung(op, part - 1)] = -1
        if part < self.rungs:
            terms[self.rung(op, part)] = 1
        return terms, 1 if part == self.rungs else 0

    def climb_ladders(self) -> Iterable[Row]:
        """Who is in the parts up to j is in the parts up to j + 1."""
        for op in range(self.problem.num_ops):
            for part in range(self.rungs - 1):
                yield Row({self.rung(op, part): 1, self.rung(op, part + 1): -1}, 0)

    def follow_edges(self) -> Iterable[Row]:
        """Where an op is in the parts up to j, so is everything that it needs."""
        for src, dst in self.problem.edges:
            for part in range(self.rungs):
                yield Row({self.rung(dst, part): 1, self.rung(src, part): -1}, 0)

    def charge_tensors(self) -> Iterable[Row]:
        """A part pays for a tensor when owner and reader are not both in it or both outside."""
        for t, tensor in enumerate(self.tensors):
            for part in range(self.problem.num_parts):
                yield from self._charge_tensor(t, tensor, part)

    def _charge_tensor(self, t: int, tensor: LoadTensor, part: int) -> Iterable[Row]:
        owner, owner_constant = self.membership(tensor.owner, part)
        for reader in tensor.ends - {tensor.owner}:
            terms, constant = self.membership(reader, part)
            difference = add_terms([(owner, 1), (terms, -1)])
            gap = owner_constant - constant
            yield Row(add_terms([(difference, 1), ({self.charge(t, part): 1}, -1)]), -gap)
            yield Row(add_terms([(difference, -1), ({self.charge(t, part): 1}, -1)]), gap)

    def limit_loads(self) -> Iterable[Row]:
        """Work and tensors of every part stay within the largest load."""
        seconds = [round(op.seconds / self.unit_s) for op in self.problem.ops]
        for part in range(self.problem.num_parts):
            terms, constant = self._sum_members(seconds, part)
            for t, tensor in enumerate(self.tensors):
                terms[self.charge(t, part)] = round(tensor.seconds / self.unit_s)
            yield Row(terms, -constant, is_load=True)

    def limit_memory(self) -> Iterable[Row]:
        """The ops of every part fit its device."""
        limit = self.problem.memory_bytes
        sizes = [op.bytes for op in self.problem.ops]
        if limit is None or sum(sizes) <= limit:
            return
        for part in range(self.problem.num_parts):
            terms, constant = self._sum_members(sizes, part)
            yield Row(terms, limit - constant)

    def _sum_members(self, weights: Sequence[int], part: int) -> tuple[Terms, int]:
        """Weights of the ops in a part, as terms and constant."""
        pieces, total = [], 0
        for op, weight in enumerate(weights):
            terms, constant = self.membership(op, part)
            pieces.append((terms, weight))
            total += weight * constant
        return add_terms(pieces), total


def add_terms(pieces: Iterable[tuple[Terms, int]]) -> Terms:
    """The sum of terms times factors; what cancels is left out."""
    total: Terms = {}
    for terms, factor in pieces:
        for variable, coefficient in terms.items():
            total[variable] = total.get(variable, 0) + factor * coefficient
    return {variable: c for variable, c in total.items() if c}


def read_parts(problem: MaxLoad, ladder: Sequence[bool]) -> list[list[int]]:
    """The ops of every part from the values of the ladder."""
    rungs = problem.num_parts - 1
    parts: list[list[int]] = [[] for _ in range(problem.num_parts)]
    for op in range(problem.num_ops):
        parts[rungs - sum(ladder[op * rungs : (op + 1) * rungs])].append(op)
    return parts


def write_ladder(problem: MaxLoad, parts: Sequence[Iterable[int]]) -> list[bool]:
    """Values of the ladder for parts in order."""
    rungs = problem.num_parts - 1
    ladder = [False] * (problem.num_ops * rungs)
    for number, part in enumerate(parts):
        for op in part:
            for rung in range(number, rungs):
                ladder[op * rungs + rung] = True
    return ladder


def choose_unit(bound_s: float) -> float:
    """Seconds of one unit."""
    return bound_s / UNITS if 0 < bound_s < math.inf else 1 / UNITS
