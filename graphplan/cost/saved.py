"""What a model keeps between its forward and its backward.

Named values count once by storage. What an op keeps besides (masks, copies, statistics) was seen
when the graph was captured: on a CPU, in the graph's own dtype. On an accelerator a dropout keeps a
mask of bytes where a CPU keeps one as wide as its result, and attention keeps the logarithms of its
sums, never its scores: there the CPU falls back to plain products for a dropout or a trained bias.
Copies of operands shrink with the precision; statistics of norms do not.
"""

from __future__ import annotations

from graphplan.cost.kinds import classify_op
from graphplan.nouns.opgraph import Op, OpGraph
from graphplan.nouns.tensor import ITEM_BYTES

STATISTIC_BYTES = 4
"""Attention and norms keep sums in 32 bits."""


def count_saved_bytes(graph: OpGraph, batch_size: int) -> int:
    """Bytes that autograd keeps for one micro-batch on one device, each storage once.

    Weights are not counted; model inputs are, where an op keeps them.
    """
    kept = {name for op in graph.ops for name in op.saved}
    shared = (spec for name in kept if (spec := graph.size_of(name)) is not None)
    own = sum(constant + per_sample * batch_size for constant, per_sample in _internal(graph))
    return own + sum(spec.num_bytes(batch_size) for spec in shared)


def count_weight_bytes(graph: OpGraph) -> int:
    """Bytes of parameters, buffers and constants."""
    return sum(weight.spec.num_bytes(1) for weight in graph.weights)


def keep_internal(op: Op, num_samples: int, item_bytes: int, *, accelerated: bool) -> int:
    """Bytes of an op that no value names; `item_bytes`: width of its result in training."""
    constant, per_sample = op.saved_bytes
    seen = constant + per_sample * num_samples
    if not seen or op.output is None or not item_bytes:
        return seen
    width, kind = ITEM_BYTES[op.output.dtype], classify_op(op)
    elements = op.output.num_elements(num_samples)
    if op.kind == "dropout" and seen >= width * elements:
        return elements * (1 if accelerated else item_bytes)
    if kind == "attention" and accelerated:
        rows = elements // max(1, op.output.sizes(num_samples)[-1])
        return min(seen, STATISTIC_BYTES * rows)
    return seen * item_bytes // width if kind == "matmul" else seen


def _internal(graph: OpGraph) -> list[tuple[int, int]]:
    return [op.saved_bytes for op in graph.ops]
