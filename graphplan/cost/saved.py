"""What a whole model keeps between its forward and its backward, by storage."""

from __future__ import annotations

from graphplan.nouns.opgraph import OpGraph


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


def _internal(graph: OpGraph) -> list[tuple[int, int]]:
    return [op.saved_bytes for op in graph.ops]
