"""Fuse: what a compiler leaves of elementwise kernels.

A compiler (torch.compile) joins an elementwise op with the op before it where both are bound by
memory, one reads the other's result, and nobody else does: the tensor between them is neither
written nor read, and the second kernel is not launched. The backward is joined likewise. Products,
convolutions and attention stay kernels of their own.

Assumptions, and when they break: chains only, no joining with the products before them (Triton
templates do), and nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphplan.cost.flops import Work
from graphplan.cost.laws.kernel import Kernel, Rows, Stream
from graphplan.nouns.opgraph import OpGraph

JOINED = frozenset({"elementwise", "norm", "softmax"})
"""Kinds whose kernels a compiler writes itself."""


def fuse_works(graph: OpGraph, works: Sequence[Work]) -> list[Work]:
    """The works with the traffic of fused tensors taken out."""
    readers: dict[str, int] = {}
    for op in graph.ops:
        for name in dict.fromkeys(op.inputs):
            readers[name] = readers.get(name, 0) + 1
    place = {op.name: i for i, op in enumerate(graph.ops)}
    found = list(works)
    for i, op in enumerate(graph.ops):
        if works[i].kind not in JOINED:
            continue
        for name in dict.fromkeys(op.inputs):
            before = place.get(name)
            if before is None or readers[name] > 1 or works[before].kind not in JOINED:
                continue
            spec = graph.ops[before].output
            if spec is not None and op.output is not None:
                _join(found, before, i)
    return found


def _join(works: list[Work], before: int, after: int) -> None:
    """Take a tensor out of both: written by one, read by the other; backward alike."""
    tensor = min(works[before].result_bytes, works[after].result_bytes)
    works[before] = msgspec.structs.replace(
        works[before],
        forward=_shrink(works[before].forward, tensor, launch=False),
        input_grad=_shrink(works[before].input_grad, tensor, launch=False),
    )
    works[after] = msgspec.structs.replace(
        works[after],
        forward=_shrink(works[after].forward, tensor, launch=True),
        input_grad=_shrink(works[after].input_grad, tensor, launch=True),
    )


def _shrink(kernels: tuple[Kernel, ...], num_bytes: int, *, launch: bool) -> tuple[Kernel, ...]:
    """The first kernel with fewer bytes, and a launch less where it became part of another."""
    if not kernels:
        return kernels
    first = kernels[0]
    if isinstance(first, Stream):
        left = max(0, first.num_bytes - num_bytes)
        launches = max(0, first.launches - launch) if launch else 1
        return (Stream(left, launches), *kernels[1:])
    if isinstance(first, Rows):
        tensor = max(1, first.item_bytes * first.rows * first.columns)
        passes = max(0.0, first.passes - num_bytes / tensor)
        return (first._replace(passes=passes, launches=1), *kernels[1:])
    return kernels
