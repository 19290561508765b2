"""label_stages: what each stage is called, from the modules of its ops.

A stage is told by the largest modules that it holds, all but a tenth of their ops at least;
consecutive numbers become ranges: `encoder.layers.0-3`. A module of which it holds less is marked
with `(part)`. A few stray ops are left out: a label is for reading, the ops are in the plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import StageLabel
from graphplan.nouns.stages import StageGraph

HELD = 0.9
"""Share of a module's ops from which on a stage is said to hold it."""
MAX_NAMES = 3
"""Names in a label before the deepest of them are folded."""

_NUMBERED = re.compile(r"(.*?)(\d+)")


def label_stages(graph: OpGraph, stages: StageGraph) -> tuple[StageLabel, ...]:
    """A label for each stage of a graph."""
    totals = count_by_prefix(op.module for op in graph.ops)
    module_by_op = {op.name: op.module for op in graph.ops}
    weight_by_name = graph.weight_by_name
    labels = []
    for stage in stages.stages:
        ops = [graph.op_by_name[name] for name in stage.ops if name in graph.op_by_name]
        weights = dict.fromkeys(weight_by_name[name] for op in ops for name in op.weights)
        parameters = [weight for weight in weights if weight.kind == "parameter"]
        labels.append(
            StageLabel(
                modules=name_modules([module_by_op[op.name] for op in ops], totals),
                num_ops=len(stage.ops),
                num_parameters=sum(each.spec.num_elements(1) for each in parameters),
                param_bytes=sum(each.spec.num_bytes(1) for each in parameters),
            )
        )
    return tuple(labels)


def name_modules(modules: Sequence[str], totals: Mapping[str, int]) -> tuple[str, ...]:
    """A short list of modules that tells these ops; `totals` counts ops by module prefix.

    Modules that are held come first, then parts of others, the larger part first.
    """
    inside = count_by_prefix(modules)
    held = {path for path in inside if path and inside[path] >= HELD * totals[path]}
    roots = [path for path in inside if path in held and held.isdisjoint(_parents(path))]
    strays = Counter(path for path in modules if held.isdisjoint((path, *_parents(path))))
    parts = [path for path, _ in strays.most_common() if path]
    while parts and strays[parts[-1]] + strays[""] <= (1 - HELD) * len(modules):
        strays[""] += strays[parts.pop()]
    roots, parts = _fold_deepest(roots, parts)
    named = _join_numbers(roots) + [f"{path} (part)" for path in _join_numbers(parts)]
    return tuple(named) or ("(top level)",)


def _fold_deepest(roots: list[str], parts: list[str]) -> tuple[list[str], list[str]]:
    """While the list is long, a part of the module above stands for its deepest entries."""
    while len(_join_numbers(roots)) + len(parts) > MAX_NAMES:
        depth = max(path.count(".") for path in (*roots, *parts))
        if depth == min(path.count(".") for path in (*roots, *parts)):
            break
        deep = [path for path in (*roots, *parts) if path.count(".") == depth]
        roots = [path for path in roots if path.count(".") < depth]
        above = [path.rpartition(".")[0] for path in deep]
        parts = list(dict.fromkeys((*(p for p in parts if p.count(".") < depth), *above)))
    return roots, parts


def count_by_prefix(modules: Iterable[str]) -> Counter[str]:
    """Ops by module path and by every path above it, in the order of the ops."""
    counts: Counter[str] = Counter()
    for path, count in Counter(modules).items():
        for prefix in (*_parents(path), path):
            counts[prefix] += count
    return counts


def _parents(path: str) -> tuple[str, ...]:
    """Every path above one, outermost first: `a.b.c` -> `a`, `a.b`."""
    parts = path.split(".")
    return tuple(".".join(parts[:i]) for i in range(1, len(parts)))


def _join_numbers(paths: Sequence[str]) -> list[str]:
    """Neighbours that differ in their last number become one: `layers.0-1`."""
    joined: list[tuple[str, int | None, int]] = []
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        if match is None:
            joined.append((path, None, 0))
            continue
        head, number = match[1], int(match[2])
        before = joined[-1] if joined else None
        if before and before[0] == head and before[1] is not None and before[2] == number - 1:
            joined[-1] = (head, before[1], number)
        else:
            joined.append((head, number, number))
    return [_format_run(*each) for each in joined]


def _format_run(head: str, first: int | None, last: int) -> str:
    if first is None:
        return head
    return f"{head}{first}" if first == last else f"{head}{first}-{last}"
