"""What must have happened before a node's first micro-batch, and what must follow its last.

Read every task of a stage as its nodes run one after the other, in their order forward and against
it backward: each node then starts after the nodes it reads, for the same samples, and a device does
one thing at a time. Let S be the m samples of the first micro-batch that node v starts.

Head. All ancestors u of v have worked on S before that. They took at least m f_u(n_u) / n_u device
    seconds each, whatever their own micro-batches (larger ones take more), and all devices together
    had no more than their time: head_v(m) >= sum_u m min_{k,n} l_k f_u / n.
    A last micro-batch of a reader u of v that meets S starts when all of S has been through the
    ancestors of u, as the others that meet S started before it. So head_v(m) >= head_u(m) + f_u.

Tail. Let S be the samples of the last micro-batch of which v computes the input gradient. All nodes
    that gradients reach from v still have both gradients of S before them, and their updates, which
    follow their last backward: as work of all devices, or along a path.

            m samples through all ancestors        M micro-batches           gradients of m samples
    time  |------------- head_v(m) ------------|- f f f i f i i .. of v -|------- tail_v(m) -------|
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy

from graphplan.nouns.problem import Floats, Problem
from graphplan.partition.bounds.costs import NodeCosts

ROWS = 512
"""Nodes whose ancestors are looked at together; bounds the memory of large graphs."""


def measure_heads(problem: Problem, costs: NodeCosts) -> Floats:
    """[micro-batch size, node]: the least time before a node's first micro-batch of that size."""
    sizes = numpy.array(problem.micro_batch_sizes, dtype=float)
    work = _sum_before(problem.num_nodes, problem.successors, costs.forward_rate)
    heads = numpy.outer(work, sizes)
    forward = costs.forward.min(axis=0).tolist()
    for v in range(problem.num_nodes):
        for u in problem.successors[v]:
            numpy.maximum(heads[u], heads[v] + forward[v], out=heads[u])
    return heads.T


def measure_tails(problem: Problem, costs: NodeCosts, gradients: Sequence[Iterable[int]]) -> Floats:
    """[micro-batch size, node]: the least time after a node's last input gradient."""
    sizes = numpy.array(problem.micro_batch_sizes, dtype=float)
    tails = numpy.outer(_sum_before(problem.num_nodes, gradients, costs.backward_rate), sizes)
    tails += _sum_before(problem.num_nodes, gradients, costs.updating)[:, None]
    inputs, last = costs.inputs.tolist(), (costs.weights + costs.closing).tolist()
    for v in range(problem.num_nodes):
        for u in gradients[v]:
            numpy.maximum(tails[u], inputs[v] + numpy.maximum(tails[v], last[v]), out=tails[u])
    return tails.T


def find_gradients(problem: Problem) -> list[set[int]]:
    """By node, the readers that send it a gradient."""
    found: list[set[int]] = [set() for _ in range(problem.num_nodes)]
    for flow in problem.flows:
        if flow.owner is not None and flow.needs_grad:
            found[flow.owner].update(flow.readers)
    return found


def _sum_before(num_nodes: int, readers: Sequence[Iterable[int]], amounts: Floats) -> Floats:
    """By node, the amounts of all nodes from which a path along `readers` leads to it."""
    before = [0] * num_nodes
    for v in range(num_nodes):
        reached = before[v] | 1 << v
        for u in readers[v]:
            before[u] |= reached
    width = -(-num_nodes // 8)
    sums = numpy.zeros(num_nodes)
    for first in range(0, num_nodes, ROWS):
        rows = before[first : first + ROWS]
        packed = numpy.frombuffer(b"".join(row.to_bytes(width, "little") for row in rows), "uint8")
        bits = numpy.unpackbits(packed.reshape(len(rows), width), axis=1, bitorder="little")
        sums[first : first + ROWS] = bits[:, :num_nodes].astype(float) @ amounts
    return sums
