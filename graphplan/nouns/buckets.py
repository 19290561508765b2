"""Buckets: which gradients of a stage are reduced together, beside its last backward.

A gradient is complete when the backward of the op that reads its weight first has run, so that
gradients come in the reverse order of these ops:

    ops          embed(e)   linear(a, b)   linear(c, d)
    gradients       e           b a            d c
    order        d  c  b  a  e
    buckets      [d  c  b] [a  e]         each closed as soon as it holds enough

A bucket is posted when its last gradient is there, and only after the one before it: all replicas
post them in one order, whatever order gradients really come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphplan.nouns.opgraph import OpGraph


def order_gradients(graph: OpGraph, ops: Iterable[str]) -> list[str]:
    """The weights that some ops read, in the order in which their gradients are complete."""
    wanted = set(ops)
    first = dict.fromkeys(name for op in graph.ops if op.name in wanted for name in op.weights)
    return list(first)[::-1]


def fill_buckets(sizes: Sequence[int], bucket_bytes: int) -> Iterator[range]:
    """Places of consecutive gradients that make a bucket, by the bytes of each."""
    start = held = 0
    for place, size in enumerate(sizes):
        held += size
        if held >= bucket_bytes:
            yield range(start, place + 1)
            start, held = place + 1, 0
    if start < len(sizes):
        yield range(start, len(sizes))
