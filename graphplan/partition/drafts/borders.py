"""Moves across borders: a part hands nodes to another one.

The last nodes of a part, in the topological order, can go to a part after it, the first ones to a
part before it. How many: one, and as many as make the two parts equally busy. Where a part holds
pieces of several branches, a whole piece may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphplan.partition.assemble import Draft
from graphplan.partition.drafts.scene import Scene, change_nodes, sum_work

MAX_PIECES = 6
MAX_PATH = 8
"""Parts on the way of a ripple."""


def shift_borders(scene: Scene) -> Iterator[Draft]:
    """Nodes go from a part in focus to a neighbour, or to one of the least busy parts."""
    for p in scene.focus:
        targets = dict.fromkeys([*scene.neighbours(p), *scene.lightest(4)])
        for q in targets:
            if q != p:
                yield from _give(scene, p, q)


def pull_borders(scene: Scene) -> Iterator[Draft]:
    """A part in focus takes nodes from its neighbours: a longer stage may spare a message."""
    for p in scene.focus:
        for q in scene.neighbours(p):
            for chunk in _list_chunks(scene, q, p)[:2]:
                yield _move(scene, q, p, chunk)


def ripple_borders(scene: Scene) -> Iterator[Draft]:
    """Every part on a way from a busy part to an idle one hands on what it was given."""
    for p in scene.appraisal.busiest:
        for step in (scene.after, scene.before):
            yield from _ripple(scene, p, step)


def _give(scene: Scene, p: int, q: int) -> Iterator[Draft]:
    for chunk in _list_chunks(scene, p, q):
        yield _move(scene, p, q, chunk)


def _move(scene: Scene, p: int, q: int, chunk: Sequence[int]) -> Draft:
    giver, taker = scene.draft[p], scene.draft[q]
    left = change_nodes(giver, drop=chunk)
    return scene.replace({p: left if left.nodes else None, q: change_nodes(taker, add=chunk)})


def _list_chunks(scene: Scene, p: int, q: int) -> list[tuple[int, ...]]:
    """Sets of nodes that p may give to q."""
    nodes = scene.draft[p].nodes
    found: list[tuple[int, ...]] = []
    if q not in scene.before[p]:
        found += [nodes[-count:] for count in _count_nodes(scene, p, q, nodes[::-1])]
    if q not in scene.after[p]:
        found += [nodes[:count] for count in _count_nodes(scene, p, q, nodes)]
    pieces = scene.list_components(p)
    if len(pieces) > 1:
        lightest = sorted(pieces, key=lambda piece: float(scene.work[list(piece)].sum()))
        found += lightest[:MAX_PIECES]
        for piece in lightest[-2:]:
            found += [piece[-count:] for count in _count_nodes(scene, p, q, piece[::-1])]
            found += [piece[:count] for count in _count_nodes(scene, p, q, piece)]
    return list(dict.fromkeys(found))


def _count_nodes(scene: Scene, p: int, q: int, nodes: Sequence[int]) -> list[int]:
    """One node, and those numbers that come closest to equal loads."""
    giver, taker = scene.draft[p].devices, scene.draft[q].devices
    own = scene.load[giver]
    surplus = own - scene.load[taker]
    total = sum_work(scene.work, nodes)
    counts = {1}
    if surplus > 0 and own > 0 and giver != taker:
        # What a replica saves on one side it costs on the other, in proportion to their numbers.
        weight = len(taker) / (len(giver) + len(taker))
        wanted = float(scene.work[list(scene.draft[p].nodes)].sum()) * surplus / own * weight
        best = int(total.searchsorted(wanted))
        counts |= {best, best + 1}
    return sorted(count for count in counts if 1 <= count <= len(nodes))


def _ripple(scene: Scene, p: int, step: list[set[int]]) -> Iterator[Draft]:
    """Along the lightest next part, as far as it goes."""
    way = [p]
    downstream = step is scene.after
    while len(way) < MAX_PATH:
        further = sorted(step[way[-1]] - set(way))
        if not further:
            return
        way.append(min(further, key=lambda q: scene.load[scene.draft[q].devices]))
        if len(way) < 3:
            continue
        changed = _hand_on(scene, way, downstream=downstream)
        if changed is not None:
            yield changed


def _hand_on(scene: Scene, way: Sequence[int], *, downstream: bool) -> Draft | None:
    """Equal shares of the surplus cross every border of the way."""
    loads = [scene.load[scene.draft[p].devices] for p in way]
    mean = sum(loads) / len(loads)
    nodes = {p: scene.draft[p].nodes for p in way}
    for i in range(len(way) - 1):
        p, q = way[i], way[i + 1]
        surplus = sum(loads[: i + 1]) - mean * (i + 1)
        own = scene.draft[p].nodes
        if surplus <= 0 or loads[i] <= 0:
            return None
        ordered = own[::-1] if downstream else own
        wanted = float(scene.work[list(own)].sum()) * surplus / loads[i]
        count = max(1, int(sum_work(scene.work, ordered).searchsorted(wanted)))
        chunk = set(ordered[:count])
        nodes[p] = tuple(node for node in nodes[p] if node not in chunk)
        nodes[q] = tuple(sorted((*nodes[q], *chunk)))
        if not nodes[p]:
            return None
    return scene.replace(
        {p: change_nodes(scene.draft[p], add=nodes[p], drop=scene.draft[p].nodes) for p in way}
    )
