"""Contraction of max-load problems: ops that some optimal cut keeps together become one.

Let u be the only predecessor of v, or its only successor, and let the tensors with ends u and v
alone take s seconds. Move v into the part of u. That part gains the work of v and at most all other
tensors of v, and no longer pays s; the part that v leaves loses its work and s, and gains at most
the same other tensors. Other parts pay no more than before. So if

    work(v) + other tensors of v <= s

no load grows, and as the move respects every edge, an optimal cut has u and v together. Memory must
not be able to forbid the move: it does not matter, or v takes none.
"""

from __future__ import annotations

import heapq

from graphplan.partition.dag.fold import Groups
from graphplan.partition.maxload.maxload import MaxLoad
from graphplan.partition.maxload.shrink import merge_groups


def contract_maxload(problem: MaxLoad) -> tuple[MaxLoad, Groups]:
    """An equivalent problem with fewer ops, and the ops of the original in each of them."""
    merger = _Merger(problem)
    merger.run()
    groups = merger.list_groups()
    return merge_groups(problem, groups), groups


class _Merger:
    """A graph of groups under contraction; a group is known by one of its ops."""

    def __init__(self, problem: MaxLoad) -> None:
        self.problem = problem
        self.before = {v: set(others) for v, others in enumerate(problem.predecessors)}
        self.after = {v: set(others) for v, others in enumerate(problem.successors)}
        self.seconds = {v: op.seconds for v, op in enumerate(problem.ops)}
        self.bytes = {v: op.bytes for v, op in enumerate(problem.ops)}
        self.ends = {t: set(tensor.ends) for t, tensor in enumerate(problem.tensors)}
        self.tensors = {v: set(found) for v, found in enumerate(problem.tensors_by_op)}
        self.members = {v: [v] for v in range(problem.num_ops)}
        total = sum(self.bytes.values())
        self.roomy = problem.memory_bytes is None or total <= problem.memory_bytes

    def run(self) -> None:
        """Contract until no op can join a neighbour for free."""
        waiting = list(self.members)
        while waiting:
            v = waiting.pop()
            host = self._find_host(v) if v in self.members else None
            if host is not None:
                near = self.before[v] | self.after[v] | self.before[host] | self.after[host]
                self._join(v, host)
                waiting += sorted({host, *near} & self.members.keys())

    def _find_host(self, v: int) -> int | None:
        """The neighbour whose part v may always join."""
        if not self.roomy and self.bytes[v]:
            return None
        total = self.seconds[v] + sum(self._seconds(t) for t in self.tensors[v])
        # With one neighbour on a side, no other path runs between the two: no cycle can close.
        hosts = [near for near in (self.before[v], self.after[v]) if len(near) == 1]
        for host in sorted(set().union(*hosts)):
            between = sum(self._seconds(t) for t in self.tensors[v] if self.ends[t] == {v, host})
            if total - between <= between:
                return host
        return None

    def _seconds(self, t: int) -> float:
        return self.problem.tensors[t].seconds if len(self.ends[t]) > 1 else 0.0

    def _join(self, v: int, host: int) -> None:
        """Contract v into the host."""
        self.seconds[host] += self.seconds.pop(v)
        self.bytes[host] += self.bytes.pop(v)
        self.members[host] += self.members.pop(v)
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            for other in mine.pop(v):
                theirs[other].discard(v)
                if other != host:
                    theirs[other].add(host)
                    mine[host].add(other)
        for t in self.tensors.pop(v):
            self.ends[t].discard(v)
            self.ends[t].add(host)
            self.tensors[host].add(t)

    def list_groups(self) -> Groups:
        """Groups in a topological order, the earliest op first among those that are ready."""
        missing = {v: len(self.before[v]) for v in self.members}
        ready = [(min(self.members[v]), v) for v, count in missing.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, v = heapq.heappop(ready)
            order.append(tuple(sorted(self.members[v])))
            for later in self.after[v]:
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(ready, (min(self.members[later]), later))
        assert len(order) == len(self.members), "contraction closed a cycle"
        return tuple(order)
