"""Unfolding: each `graphplan::repeat` in a trace becomes a copy of what the first one left there.

The copy has the nodes of the first sub-module in their order, with the values, weights and the
memory of the repeated one in place of its own. A copy shares the traced values of the original,
from which only shapes are read; whose memory a value shows is told by `memory_of`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import fx

from graphplan.frontend.repeats import FIRST, REPEAT
from graphplan.frontend.writes import memory_of


def unfold_repeats(graph: fx.Graph) -> None:
    """Replace every repeat by the nodes of the sub-module that it repeats."""
    firsts: dict[str, _First] = {}
    marked: dict[str, list[fx.Node]] = {}
    """Nodes of the sub-modules by key; copies belong to those around the repeat."""
    for node in list(graph.nodes):
        if node._erased:  # It took a result of a repeat.
            continue
        nodes = [node]
        if node.target is FIRST:
            key = str(node.args[0])
            firsts[key] = _First(node, marked.pop(key))
            graph.erase_node(node)
            continue
        if node.target is REPEAT:
            nodes = firsts[str(node.args[0])].copy_to(graph, node)
        for each in nodes:
            for key in each.meta.get("firsts", ()):
                marked.setdefault(key, []).append(each)


def move_path(path: str, node: fx.Node) -> str:
    """The path of the module that a copy belongs to, from that of its original."""
    for old, new in node.meta.get("moves", ()):
        if f"{path}.".startswith(f"{old}."):
            path = new + path[len(old) :]
    return path


class _First:
    """A sub-module that others repeat, in the exported graph."""

    def __init__(self, mark: fx.Node, nodes: Sequence[fx.Node]) -> None:
        _, path, values, weights, results = mark.args
        self.path = _as_exported(path)
        self.given: list[Any] = [*values, *weights]  # type: ignore[misc]
        self.results: Any = results
        self.nodes = [node for node in nodes if node is not mark]
        own = {*self.nodes, *self.given}
        outside = {given for node in self.nodes for given in node.all_input_nodes} - own
        self.outer_memory = {memory_of(node) for node in outside}

    def copy_to(self, graph: fx.Graph, repeat: fx.Node) -> list[fx.Node]:
        """Put a copy in the place of a repeat."""
        _, path, places, values, weights = repeat.args
        given: list[Any] = [*values, *weights]  # type: ignore[misc]
        copies = dict(zip(self.given, given, strict=True))
        memory = {memory_of(old): memory_of(new) for old, new in copies.items()}
        memory |= {held: held for held in self.outer_memory if held not in memory}
        taken = {user: self.results[places[user.args[1]]] for user in repeat.users}  # type: ignore
        for user, result in taken.items():
            memory.setdefault(memory_of(result), memory_of(user))
        fresh = []
        for node in self.nodes:
            with graph.inserting_before(repeat):
                copy = graph.node_copy(node, lambda each: copies.get(each, each))
            copy.meta["firsts"] = repeat.meta.get("firsts", ())
            moves = node.meta.get("moves", ())
            copy.meta["moves"] = (*moves, (self.path, _as_exported(path)))
            copy.meta["memory"] = _move_memory(memory_of(node), memory, repeat)
            copies[node] = copy
            fresh.append(copy)
        for user, result in taken.items():
            user.replace_all_uses_with(copies[result])
            graph.erase_node(user)
        graph.erase_node(repeat)
        return fresh


def _move_memory(held: Hashable, moved: dict[Hashable, Hashable], repeat: fx.Node) -> Hashable:
    """The memory of a copy: what belongs to the original alone, the copy has for itself."""
    return None if held is None else moved.get(held, (repeat.name, held))


def _as_exported(path: Any) -> str:
    return str(path).removeprefix("_export_root").removeprefix(".")
