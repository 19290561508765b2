"""Moves of devices and settings: replicas, places, micro-batches, recomputation."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphplan.partition.assemble import Draft
from graphplan.partition.drafts.pack import pack_groups
from graphplan.partition.drafts.scene import Scene

Devices = tuple[int, ...]


def pack_places(scene: Scene) -> Iterator[Draft]:
    """All groups are laid out anew, so that few of them span nodes."""
    packed = pack_groups(scene.problem, scene.draft)
    if packed is not None:
        yield packed


def move_replicas(scene: Scene) -> Iterator[Draft]:
    """A group of devices in focus grows by free devices or by those of a lighter group; it may
    span nodes then, so that all groups are packed too."""
    for draft in _grow_groups(scene):
        yield draft
        packed = pack_groups(scene.problem, draft)
        if packed is not None:
            yield packed


def _grow_groups(scene: Scene) -> Iterator[Draft]:
    for p in scene.focus:
        own = scene.draft[p].devices
        for count in (1, len(own)):
            if len(scene.free) >= count:
                yield _relocate(scene, {own: tuple(sorted((*own, *scene.free[:count])))})
        for q in dict.fromkeys([*scene.lightest(5), *scene.neighbours(p)]):
            other = scene.draft[q].devices
            for count in dict.fromkeys((1, len(other) // 2)):
                if other != own and 0 < count < len(other):
                    grown = tuple(sorted((*own, *other[-count:])))
                    yield _relocate(scene, {own: grown, other: other[:-count]})


def drop_replicas(scene: Scene) -> Iterator[Draft]:
    """A replicated part on the longest way gives up devices: less to reduce at the end."""
    for p in scene.appraisal.critical:
        own = scene.draft[p].devices
        if len(own) > 1:
            yield _relocate(scene, {own: own[: len(own) // 2]})


def swap_places(scene: Scene) -> Iterator[Draft]:
    """Two groups of equal size change places, or a group moves to free devices."""
    cluster = scene.problem.cluster
    if len(cluster.nodes) == 1 and len(cluster.types) == 1:
        return
    groups = list(dict.fromkeys(part.devices for part in scene.draft))
    for p in scene.focus:
        own = scene.draft[p].devices
        others = [each for each in groups if len(each) == len(own) and each != own]
        for other in others[:12]:
            yield _relocate(scene, {own: other, other: own})
        if len(scene.free) >= len(own):
            yield _relocate(scene, {own: scene.free[: len(own)]})


def toggle_recompute(scene: Scene) -> Iterator[Draft]:
    """Parts on crowded devices recompute; others stop to."""
    if not scene.problem.allow_recompute:
        return
    for p in scene.focus:
        part = scene.draft[p]
        yield scene.replace({p: msgspec.structs.replace(part, recompute=not part.recompute)})
    for wanted in (True, False):
        if any(part.recompute != wanted for part in scene.draft):
            yield tuple(msgspec.structs.replace(part, recompute=wanted) for part in scene.draft)


def change_micro_batches(scene: Scene) -> Iterator[Draft]:
    """The next smaller or larger micro-batch for all parts, or for one group in focus."""
    sizes = sorted(scene.problem.micro_batch_sizes)
    largest = max(part.micro_batch_size for part in scene.draft)
    place = sizes.index(largest)
    for wanted in sizes[max(0, place - 2) : place] + sizes[place + 1 : place + 3]:
        yield tuple(msgspec.structs.replace(part, micro_batch_size=wanted) for part in scene.draft)
    for p in scene.focus[:4]:
        part = scene.draft[p]
        for wanted in (part.micro_batch_size // 2, part.micro_batch_size * 2):
            if wanted in scene.problem.micro_batch_sizes:
                yield tuple(
                    msgspec.structs.replace(each, micro_batch_size=wanted)
                    if each.devices == part.devices
                    else each
                    for each in scene.draft
                )


def _relocate(scene: Scene, moved: dict[Devices, Devices]) -> Draft:
    return tuple(
        msgspec.structs.replace(part, devices=moved[part.devices])
        if part.devices in moved
        else part
        for part in scene.draft
    )
