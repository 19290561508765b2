"""Moves that change the number of parts: split, merge, share devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from graphplan.partition.assemble import Draft
from graphplan.partition.drafts.scene import Scene, change_nodes, sum_work

MAX_PAIRS = 24


def split_parts(scene: Scene) -> Iterator[Draft]:
    """A part in focus becomes two: on free devices, on half of its own, or both on all of them."""
    for p in scene.focus:
        part = scene.draft[p]
        for front, back in _halve(scene, p):
            for first, second in _share_devices(scene, part.devices):
                yield scene.replace(
                    {p: msgspec.structs.replace(part, nodes=front, devices=first)},
                    [msgspec.structs.replace(part, nodes=back, devices=second)],
                )


def separate_pieces(scene: Scene) -> Iterator[Draft]:
    """Independent pieces of a part become parts of their own on the same devices."""
    split = {}
    for p in range(len(scene.draft)):
        pieces = scene.list_components(p) if len(scene.draft[p].nodes) > 1 else []
        if 1 < len(pieces) <= 4:
            split[p] = [msgspec.structs.replace(scene.draft[p], nodes=piece) for piece in pieces]
    for p, parts in split.items():
        yield scene.replace({p: None}, parts)
    if len(split) > 1:
        yield scene.replace(
            dict.fromkeys(split), [part for parts in split.values() for part in parts]
        )


def detach_ends(scene: Scene) -> Iterator[Draft]:
    """The first or last nodes of a part become a part of their own, beside another one."""
    light = [scene.draft[q].devices for q in scene.lightest(3)]
    for p in scene.focus:
        part = scene.draft[p]
        for chunk in _list_ends(scene, p):
            for devices in dict.fromkeys([part.devices, *light]):
                small = msgspec.structs.replace(part, nodes=chunk, devices=devices)
                yield scene.replace({p: change_nodes(part, drop=chunk)}, [small])


def _list_ends(scene: Scene, p: int) -> list[tuple[int, ...]]:
    """The first and last node of a part, and its independent pieces."""
    nodes = scene.draft[p].nodes
    if len(nodes) < 2:
        return []
    pieces = scene.list_components(p)
    found = [nodes[:1], nodes[-1:], *(pieces[:4] if len(pieces) > 1 else [])]
    if len(nodes) > 3:
        total = sum_work(scene.work, nodes)
        middle = min(max(1, int(total.searchsorted(total[-1] / 2))), len(nodes) - 1)
        found += [nodes[:middle], nodes[middle:]]
    return list(dict.fromkeys(found))


def merge_parts(scene: Scene) -> Iterator[Draft]:
    """Two parts become one, on the devices of one of them or on those of both."""
    for p, q in _list_pairs(scene):
        a, b = scene.draft[p], scene.draft[q]
        nodes = tuple(sorted((*a.nodes, *b.nodes)))
        if a.devices == b.devices:
            yield scene.replace({p: msgspec.structs.replace(a, nodes=nodes), q: None})
            continue
        homes = [a.devices, b.devices]
        if scene.is_alone(p) and scene.is_alone(q):
            homes.append(tuple(sorted((*a.devices, *b.devices))))
        for devices in homes:
            yield scene.replace(
                {p: msgspec.structs.replace(a, nodes=nodes, devices=devices), q: None}
            )


def share_devices(scene: Scene) -> Iterator[Draft]:
    """A part moves to the devices of another one, beside it."""
    for p in dict.fromkeys([*scene.focus, *scene.lightest(6)]):
        part = scene.draft[p]
        for q in scene.lightest(6):
            target = scene.draft[q]
            if target.devices != part.devices:
                yield scene.replace(
                    {
                        p: msgspec.structs.replace(
                            part,
                            devices=target.devices,
                            micro_batch_size=target.micro_batch_size,
                        )
                    }
                )


def merge_and_split(scene: Scene) -> Iterator[Draft]:
    """Two light parts become one, and a busy part takes over the devices that this frees."""
    period = scene.appraisal.period_s
    busiest = scene.appraisal.busiest
    for p, q in _list_pairs(scene):
        a, b = scene.draft[p], scene.draft[q]
        if {p, q} & set(busiest) or a.devices == b.devices or not scene.is_alone(q):
            continue
        if scene.load[a.devices] + scene.load[b.devices] * len(b.devices) / len(a.devices) > period:
            continue
        merged = msgspec.structs.replace(a, nodes=tuple(sorted((*a.nodes, *b.nodes))))
        for s in busiest:
            part = scene.draft[s]
            for front, back in _halve(scene, s)[:1]:
                for first, second in ((part.devices, b.devices), (b.devices, part.devices)):
                    yield scene.replace(
                        {
                            p: merged,
                            q: None,
                            s: msgspec.structs.replace(part, nodes=front, devices=first),
                        },
                        [msgspec.structs.replace(part, nodes=back, devices=second)],
                    )
            if scene.is_alone(s):
                both = tuple(sorted((*part.devices, *b.devices)))
                wide = msgspec.structs.replace(part, devices=both)
                yield scene.replace({p: merged, q: None, s: wide})


def _list_pairs(scene: Scene) -> list[tuple[int, int]]:
    """Pairs of parts to merge: neighbours in focus first, then light ones."""
    wanted = [(p, q) for p in scene.focus for q in scene.neighbours(p)]
    light = scene.lightest(5)
    wanted += [(p, q) for p in light for q in scene.neighbours(p)]
    wanted += list(itertools.combinations(light, 2))
    found = dict.fromkeys((min(pair), max(pair)) for pair in wanted)
    return list(found)[:MAX_PAIRS]


def _halve(scene: Scene, p: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Two sets of nodes of about equal work: along the order, and by pieces."""
    nodes = scene.draft[p].nodes
    if len(nodes) < 2:
        return []
    total = sum_work(scene.work, nodes)
    middle = min(max(1, int(total.searchsorted(total[-1] / 2)) + 1), len(nodes) - 1)
    found = [(nodes[:cut], nodes[cut:]) for cut in dict.fromkeys((middle, max(1, middle - 1)))]
    pieces = scene.list_components(p)
    if len(pieces) > 1:
        halves: tuple[list[int], list[int]] = ([], [])
        weights = [0.0, 0.0]
        for piece in sorted(pieces, key=lambda piece: -float(scene.work[list(piece)].sum())):
            side = weights.index(min(weights))
            halves[side].extend(piece)
            weights[side] += float(scene.work[list(piece)].sum())
        found.append((tuple(sorted(halves[0])), tuple(sorted(halves[1]))))
    return found


def _share_devices(
    scene: Scene, devices: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Devices for the two halves of a part."""
    found = [(devices, devices)]
    if scene.free:
        taken = scene.free[: len(devices)]
        found += [(devices, taken), (taken, devices)]
        if len(taken) > 1:
            found.append((devices, taken[:1]))
    alone = sum(part.devices == devices for part in scene.draft) == 1
    if len(devices) > 1 and alone:
        for cut in {len(devices) // 2, len(devices) - 1, 1}:
            found.append((devices[:cut], devices[cut:]))
    return found
