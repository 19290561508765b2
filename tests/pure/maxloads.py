"""Small max-load problems, random ones, and their optimum by trying every cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from graphplan.partition.maxload.maxload import LoadOp, LoadTensor, MaxLoad

Pairs = Sequence[tuple[int, int]]


def make_maxload(
    seconds: Sequence[float],
    edges: Pairs,
    *,
    num_parts: int = 2,
    tensor_s: Sequence[float] | float = 0.0,
    sizes: Sequence[int] | None = None,
    memory_bytes: int | None = None,
) -> MaxLoad:
    """Every op with readers owns one tensor that they all read."""
    readers: dict[int, list[int]] = {}
    for src, dst in sorted(set(edges)):
        readers.setdefault(src, []).append(dst)
    costs = [tensor_s] * len(seconds) if isinstance(tensor_s, int | float) else tensor_s
    return MaxLoad(
        name="by hand",
        ops=tuple(
            LoadOp(name=f"op{i}", seconds=each, bytes=sizes[i] if sizes else 0)
            for i, each in enumerate(seconds)
        ),
        edges=tuple(sorted(set(edges))),
        tensors=tuple(
            LoadTensor(owner=owner, readers=tuple(found), seconds=costs[owner])
            for owner, found in readers.items()
        ),
        num_parts=num_parts,
        memory_bytes=memory_bytes,
    )


def list_cuts(problem: MaxLoad) -> Iterator[tuple[int, ...]]:
    """Labels of the ops that never fall along an edge: all legal cuts, each at least once."""
    for labels in itertools.product(range(problem.num_parts), repeat=problem.num_ops):
        if all(labels[src] <= labels[dst] for src, dst in problem.edges):
            yield labels


def weigh_cut(problem: MaxLoad, labels: Sequence[int]) -> float:
    """The largest load, by the definition; infinity when a part does not fit."""
    loads = []
    for part in range(problem.num_parts):
        ops = [op for op, label in zip(problem.ops, labels, strict=True) if label == part]
        limit = problem.memory_bytes
        if limit is not None and sum(op.bytes for op in ops) > limit:
            return math.inf
        moved = 0.0
        for tensor in problem.tensors:
            inside = [labels[end] == part for end in (tensor.owner, *tensor.readers)]
            moved += tensor.seconds if any(inside) and not all(inside) else 0.0
        loads.append(sum(op.seconds for op in ops) + moved)
    return max(loads)


def brute_force(problem: MaxLoad) -> float:
    """The optimum; infinity when nothing fits."""
    return min(weigh_cut(problem, labels) for labels in list_cuts(problem))


@st.composite
def maxloads(draw: st.DrawFn, *, max_ops: int = 6, tight_memory: bool = True) -> MaxLoad:
    """Small whole numbers, so that ties and zeros are frequent."""
    num = draw(st.integers(1, max_ops), label="ops")
    pairs = list(itertools.combinations(range(num), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True), label="edges") if pairs else []
    whole = st.integers(0, 9).map(float)
    return make_maxload(
        draw(st.lists(whole, min_size=num, max_size=num), label="seconds"),
        edges,
        num_parts=draw(st.integers(1, 3), label="parts"),
        tensor_s=draw(st.lists(whole, min_size=num, max_size=num), label="tensor_s"),
        sizes=draw(st.lists(st.integers(0, 5), min_size=num, max_size=num), label="sizes"),
        memory_bytes=(
            draw(st.one_of(st.none(), st.integers(5, 20)), label="memory") if tight_memory else None
        ),
    )
