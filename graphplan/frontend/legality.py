"""Legality: what an op -> stage map must satisfy before anything is cut."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from graphplan.errors import CutError
from graphplan.nouns.opgraph import OpGraph


def check_cut(graph: OpGraph, stage_by_op: Mapping[str, int]) -> None:
    """Raise CutError unless the map covers all ops, its quotient is acyclic, and what cannot be
    sent or shared stays in one stage."""
    _check_coverage(graph, stage_by_op)
    _check_values(graph, stage_by_op)
    _check_mutated(graph, stage_by_op)
    order_stages(graph, stage_by_op)


def _check_coverage(graph: OpGraph, stage_by_op: Mapping[str, int]) -> None:
    missing = [op.name for op in graph.ops if op.name not in stage_by_op]
    if missing:
        raise CutError(
            f"{len(missing)} of {len(graph.ops)} ops have no stage: {_shorten(missing)}.",
            remedy="Give every op of the graph a stage.",
        )
    unknown = [name for name in stage_by_op if name not in graph.op_by_name]
    if unknown:
        raise CutError(
            f"The map names {len(unknown)} ops that the graph does not have: {_shorten(unknown)}.",
            remedy="Make the map from the ops of this graph; fingerprints tell graphs apart.",
        )


def _check_values(graph: OpGraph, stage_by_op: Mapping[str, int]) -> None:
    for edge in graph.edges:
        if edge.spec is None and stage_by_op[edge.src] != stage_by_op[edge.dst]:
            raise CutError(
                f"Op {edge.src!r} (stage {stage_by_op[edge.src]}) and op {edge.dst!r} (stage"
                f" {stage_by_op[edge.dst]}) are separated, but what flows between them is not one"
                " tensor of known size.",
                remedy=f"Put {edge.dst!r} into stage {stage_by_op[edge.src]}.",
            )


def _check_mutated(graph: OpGraph, stage_by_op: Mapping[str, int]) -> None:
    mutated = {name for op in graph.ops for name in op.mutates}
    home: dict[str, tuple[int, str]] = {}
    views = {op.name: op.alias for op in graph.ops if op.alias in mutated and not op.mutates}
    for op in graph.ops:
        seen = {views[name] for name in op.inputs if name in views}
        for name in mutated.intersection({*op.weights, *seen}):
            stage, first = home.setdefault(name, (stage_by_op[op.name], op.name))
            if stage != stage_by_op[op.name]:
                raise CutError(
                    f"Ops {first!r} (stage {stage}) and {op.name!r} (stage"
                    f" {stage_by_op[op.name]}) both use the buffer {name!r}, which the model"
                    " changes during the forward pass.",
                    remedy=f"Put {op.name!r} into stage {stage}.",
                )


def order_stages(graph: OpGraph, stage_by_op: Mapping[str, int]) -> tuple[int, ...]:
    """The stages in a topological order, lowest number first where there is a choice; raises
    CutError with a cycle when there is none."""
    arrows: dict[tuple[int, int], tuple[str, str]] = {}
    for edge in graph.edges:
        pair = stage_by_op[edge.src], stage_by_op[edge.dst]
        if pair[0] != pair[1]:
            arrows.setdefault(pair, (edge.src, edge.dst))
    waiting = {stage: {a for a, b in arrows if b == stage} for stage in stage_by_op.values()}
    order: list[int] = []
    while waiting:
        ready = sorted(stage for stage, before in waiting.items() if not before)
        if not ready:
            raise _cycle_error(arrows, waiting)
        order.append(ready[0])
        del waiting[ready[0]]
        for before in waiting.values():
            before.discard(ready[0])
    return tuple(order)


def _cycle_error(
    arrows: Mapping[tuple[int, int], tuple[str, str]], waiting: Mapping[int, set[int]]
) -> CutError:
    path = [min(waiting)]
    while path[-1] not in path[:-1]:
        path.append(min(waiting[path[-1]]))
    cycle = path[path.index(path[-1]) :][::-1]
    steps = [
        f"stage {src} -> stage {dst} ({' -> '.join(map(repr, arrows[src, dst]))})"
        for src, dst in itertools.pairwise(cycle)
    ]
    return CutError(
        f"The stages wait for each other in a circle: {'; '.join(steps)}.",
        remedy="Move one of these ops so that every path through the stages goes one way.",
    )


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
