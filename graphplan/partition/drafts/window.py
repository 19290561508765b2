"""Window: the nodes of a draft that may change their part, and the parts that they may go to.

Parts are numbered in a topological order, and a label never falls along an edge. A node is near a
border when little else has to move with it: what needs it in its part, or what it needs there. The
nearest nodes are free, as many as a limit on the choices allows; a label lies between those of the
fixed nodes before and after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.drafts.scene import Draft


@dataclasses.dataclass(frozen=True)
class Window:
    """By node, the first and the last part that it may be in; equal for fixed nodes."""

    first: list[int]
    last: list[int]

    @property
    def free(self) -> list[int]:
        """Nodes with a choice, in their order."""
        return [v for v, first in enumerate(self.first) if first < self.last[v]]


def open_window(
    problem: Problem, work: Floats, draft: Draft, *, max_choices: int, reach: int
) -> Window:
    """Free the nodes nearest to the borders; `reach` is how many parts they may go."""
    part_of = [0] * problem.num_nodes
    for p, part in enumerate(draft):
        for node in part.nodes:
            part_of[node] = p
    distance = _measure_distances(problem, work, draft, part_of)
    ranked = sorted(
        (v for v in range(problem.num_nodes) if v not in problem.pins),
        key=lambda v: (distance[v], v),
    )
    count = len(ranked)
    while True:
        window = _bound_labels(problem, part_of, set(ranked[:count]), reach)
        choices = sum(last - first for first, last in zip(window.first, window.last, strict=True))
        if choices <= max_choices:
            return window
        count = min(count - 1, count * max_choices // choices)


def _measure_distances(
    problem: Problem, work: Floats, draft: Draft, part_of: Sequence[int]
) -> list[float]:
    """Work that moves with each node, as a share of its part; the nearer border counts.

    A node that several others need is counted for each of them: an estimate from above.
    """
    total = [max(1e-30, float(work[list(part.nodes)].sum())) for part in draft]
    ahead, behind = work.tolist(), work.tolist()
    for v in range(problem.num_nodes - 1, -1, -1):
        ahead[v] += sum(ahead[u] for u in problem.successors[v] if part_of[u] == part_of[v])
    for v in range(problem.num_nodes):
        behind[v] += sum(behind[u] for u in problem.predecessors[v] if part_of[u] == part_of[v])
    return [min(a, b) / total[p] for a, b, p in zip(ahead, behind, part_of, strict=True)]


def _bound_labels(problem: Problem, part_of: Sequence[int], free: set[int], reach: int) -> Window:
    first, last = list(part_of), list(part_of)
    top = max(part_of)
    for v in range(problem.num_nodes):
        if v in free:
            before = max((first[u] for u in problem.predecessors[v]), default=0)
            first[v] = max(before, part_of[v] - reach)
    for v in range(problem.num_nodes - 1, -1, -1):
        if v in free:
            after = min((last[u] for u in problem.successors[v]), default=top)
            last[v] = min(after, part_of[v] + reach)
    return Window(first, last)
