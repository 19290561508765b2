"""Assembling a StageGraph from sets of nodes: stages in topological order, edges from the flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import networkx

from graphplan.errors import CutError
from graphplan.nouns.base import Noun
from graphplan.nouns.problem import Problem
from graphplan.nouns.stages import Stage, StageEdge, StageGraph


class Part(Noun, frozen=True, kw_only=True, cache_hash=True):
    """A stage in the making: nodes of a problem, devices, micro-batch size, recomputation."""

    nodes: tuple[int, ...]
    devices: tuple[int, ...]
    micro_batch_size: int
    recompute: bool = False


Draft = tuple[Part, ...]
"""A stage graph in the making: parts that cover all nodes, in any order."""


def place_in_order(parts: Iterable[Part]) -> list[Part]:
    """The parts, each with as many devices as it had, on consecutive ones: parts come in the order
    of the graph, so that neighbours, which exchange most, share a node where they can."""
    placed: list[Part] = []
    first = 0
    for part in parts:
        devices = tuple(range(first, first + len(part.devices)))
        placed.append(msgspec.structs.replace(part, devices=devices))
        first += len(devices)
    return placed


def assemble_stages(problem: Problem, parts: Sequence[Part]) -> StageGraph:
    """The stage graph of a cover of all nodes by parts with an acyclic quotient."""
    part_of = {node: p for p, part in enumerate(parts) for node in part.nodes}
    if len(part_of) != problem.num_nodes or sum(len(p.nodes) for p in parts) != len(part_of):
        raise CutError(
            f"{len(part_of)} of {problem.num_nodes} nodes are covered, by"
            f" {sum(len(p.nodes) for p in parts)} places.",
            remedy="Put every node into exactly one part.",
        )
    order = _order_parts(problem, part_of, parts)
    rank = {p: s for s, p in enumerate(order)}
    trains = [bool(problem.needs_backward[list(parts[p].nodes)].any()) for p in order]
    return StageGraph(
        stages=tuple(_make_stage(problem, parts[p]) for p in order),
        edges=tuple(
            sorted(
                (
                    StageEdge(
                        src=rank[part_of[flow.owner]],
                        dst=dst,
                        value=flow.value,
                        spec=flow.spec,
                        # What is only read for its shape or without gradients sends none back.
                        needs_grad=flow.needs_grad and trains[dst],
                    )
                    for flow in problem.flows
                    if flow.owner is not None
                    for dst in {rank[part_of[reader]] for reader in flow.readers}
                    if dst != rank[part_of[flow.owner]]
                ),
                key=lambda edge: (edge.src, edge.dst, edge.value),
            )
        ),
    )


def _make_stage(problem: Problem, part: Part) -> Stage:
    ops = tuple(op for node in sorted(part.nodes) for op in problem.nodes[node].ops)
    return Stage(
        ops=ops,
        devices=part.devices,
        micro_batch_size=part.micro_batch_size,
        recompute=ops if part.recompute or problem.recompute == "full" else (),
    )


def _order_parts(problem: Problem, part_of: dict[int, int], parts: Sequence[Part]) -> list[int]:
    """Parts in a topological order, the one with the earliest node first among the ready ones."""
    quotient = networkx.DiGraph()
    quotient.add_nodes_from(range(len(parts)))
    quotient.add_edges_from(
        (part_of[src], part_of[dst]) for src, dst in problem.edges if part_of[src] != part_of[dst]
    )
    try:
        return list(
            networkx.lexicographical_topological_sort(quotient, key=lambda p: min(parts[p].nodes))
        )
    except networkx.NetworkXUnfeasible as error:
        cycle = networkx.find_cycle(quotient)
        names = " -> ".join(problem.nodes[min(parts[p].nodes)].name for p, _ in cycle)
        raise CutError(
            f"The parts that start at {names} wait for each other.",
            remedy="Choose parts whose quotient graph is acyclic.",
        ) from error
