"""layout_graph: where to draw the stages of a DAG, layer by layer from left to right.

The method of Sugiyama, Tagawa and Toda (1981): layers by longest path, an invisible node where an
edge crosses a layer, few crossings by sweeping means, then rows that pull neighbours level.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

SWEEPS = 8
MAX_BENDS = 20_000


class Node(NamedTuple):
    """Centre of a stage in units of columns and rows."""

    column: int
    row: float


class Wire(NamedTuple):
    """An edge through its layers: the stages at its ends and the points in between."""

    src: int
    dst: int
    points: tuple[Node, ...]


class Layout(NamedTuple):
    """Positions of all stages and ways of all edges."""

    nodes: tuple[Node, ...]
    wires: tuple[Wire, ...]
    num_columns: int
    num_rows: float


def layout_graph(num_nodes: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Place the nodes of a DAG whose edges point to higher numbers."""
    column = _find_columns(num_nodes, edges)
    chains, column = _insert_bends(num_nodes, edges, column)
    links = [pair for chain in chains for pair in pairwise(chain)]
    layers: list[list[int]] = [[] for _ in range(max(column, default=-1) + 1)]
    for node, place in enumerate(column):
        layers[place].append(node)
    before, after = _neighbours(len(column), links)
    _order_layers(layers, before, after)
    row = _place_rows(layers, before, after)
    top = min(row, default=0.0)
    nodes = [Node(place, row[node] - top) for node, place in enumerate(column)]
    return Layout(
        nodes=tuple(nodes[:num_nodes]),
        wires=tuple(
            Wire(chain[0], chain[-1], tuple(nodes[each] for each in chain)) for chain in chains
        ),
        num_columns=len(layers),
        num_rows=max((node.row for node in nodes), default=0.0) + 1,
    )


def _find_columns(num_nodes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest path from a source; sources move right until just before their first reader."""
    column = [0] * num_nodes
    for src, dst in sorted(edges):
        column[dst] = max(column[dst], column[src] + 1)
    has_input = {dst for _, dst in edges}
    first_reader: dict[int, int] = {}
    for src, dst in edges:
        first_reader[src] = min(first_reader.get(src, column[dst]), column[dst])
    for src, reader in first_reader.items():
        if src not in has_input:
            column[src] = reader - 1
    return column


def _insert_bends(
    num_nodes: int, edges: Sequence[tuple[int, int]], column: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """Every edge as a chain of nodes one column apart; numbers from `num_nodes` on are bends.

    Graphs with very many long edges get straight ones: bends would cost more than they show.
    """
    columns = list(column)
    if sum(column[dst] - column[src] for src, dst in edges) > MAX_BENDS:
        return [[src, dst] for src, dst in edges], columns
    chains = []
    for src, dst in edges:
        chain = [src]
        for place in range(column[src] + 1, column[dst]):
            chain.append(len(columns))
            columns.append(place)
        chains.append([*chain, dst])
    return chains, columns


def _neighbours(
    num_nodes: int, links: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(num_nodes)]
    after: list[list[int]] = [[] for _ in range(num_nodes)]
    for src, dst in links:
        before[dst].append(src)
        after[src].append(dst)
    return before, after


def _order_layers(
    layers: list[list[int]], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> None:
    """Sort each layer by the mean place of its neighbours, sweeping forth and back."""
    place = {node: float(i) for layer in layers for i, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        for layer in layers if forth else layers[::-1]:
            near = before if forth else after
            layer.sort(
                key=lambda node: (
                    sum(place[n] for n in near[node]) / len(near[node])
                    if near[node]
                    else place[node],
                    place[node],
                )
            )
            place.update((node, float(i)) for i, node in enumerate(layer))


def _place_rows(
    layers: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
) -> list[float]:
    """Rows in the order of the layers, at least 1 apart, pulled towards the mean neighbour."""
    row = [0.0] * len(before)
    for layer in layers:
        for i, node in enumerate(layer):
            row[node] = i - (len(layer) - 1) / 2
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            near = before if sweep % 2 == 0 else after
            wished = [
                sum(row[n] for n in near[node]) / len(near[node]) if near[node] else row[node]
                for node in layer
            ]
            for node, place in zip(layer, _spread(wished), strict=True):
                row[node] = place
    return row


def _spread(wished: Sequence[float]) -> list[float]:
    """The places nearest to the wished ones, in the same order and at least 1 apart.

    Isotonic regression of wished[i] - i by pooling neighbours that are out of order.
    """
    blocks: list[list[float]] = []  # [sum, count]
    for i, wish in enumerate(wished):
        blocks.append([wish - i, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    places: list[float] = []
    for total, count in blocks:
        places += [total / count + len(places) + i for i in range(int(count))]
    return places
