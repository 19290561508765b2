"""Grid: how the devices of a cluster are handed out to the stages of a pipeline, in cluster order.

Devices are handed out in units; with several groups the same pipeline stands once in each group of
nodes, and a stage has replicas in all of them:

    groups = 1   | 0 1 2 3 | 4 5 6 7 |      stage on units 2-3: devices 2 3
    groups = 2   | 0 1 2 3 | 0 1 2 3 |      stage on units 2-3: devices 2 3 6 7
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from graphplan.nouns.cluster import Cluster, Link

MAX_UNITS = 256
"""More units make the search slower and hardly better."""


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """What the costs of a stage depend on besides its nodes; compared by identity."""

    devices: tuple[int, ...]
    """Of one stage at this place; others at it have devices of the same types and nodes."""
    types: tuple[int, ...]
    """Positions in the cluster's types."""
    memory_bytes: int
    front_s_per_byte: float
    """Seconds for a byte that every replica receives from, or returns to, the stage before."""
    back_s_per_byte: float


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """`groups` equal groups of `num_units` units of `unit` devices; a remainder stays idle."""

    cluster: Cluster
    unit: int = 1
    groups: int = 1

    @cached_property
    def num_units(self) -> int:
        """Units of one group."""
        return len(self.cluster.devices) // (self.unit * self.groups)

    def devices(self, first: int, count: int) -> tuple[int, ...]:
        """Devices of a stage on `count` units from `first` on, in every group."""
        stride = self.num_units * self.unit
        return tuple(
            group * stride + device
            for group in range(self.groups)
            for device in range(first * self.unit, (first + count) * self.unit)
        )

    def num_devices(self, count: int) -> int:
        """Replicas of a stage on `count` units."""
        return count * self.unit * self.groups

    def place(self, first: int, count: int) -> Place:
        """The place of a stage on `count` units from `first` on."""
        if (first, count) not in self._place_by_range:
            self._place_by_range[first, count] = self._find_place(first, count)
        return self._place_by_range[first, count]

    @cached_property
    def _place_by_range(self) -> dict[tuple[int, int], Place]:
        return {}

    @cached_property
    def _place_by_key(self) -> dict[object, Place]:
        return {}

    def _find_place(self, first: int, count: int) -> Place:
        devices = self.devices(first, count)
        hosts = [self.cluster.devices[d] for d in devices]
        names = {host.type.name for host in hosts}
        sizes = sorted(Counter(host.node for host in hosts).values())
        place = Place(
            devices=devices,
            types=tuple(k for k, kind in enumerate(self.cluster.types) if kind.name in names),
            memory_bytes=min(host.memory_bytes for host in hosts),
            front_s_per_byte=self._port_s_per_byte(first, sizes[-1]),
            back_s_per_byte=self._port_s_per_byte(first + count, sizes[-1]),
        )
        key = (tuple(sizes), place.types, place.memory_bytes)
        ports = (place.front_s_per_byte, place.back_s_per_byte)
        return self._place_by_key.setdefault((key, ports), place)

    def _port_s_per_byte(self, unit: int, sharing: int) -> float:
        """Of the link before a unit; nothing passes the ends of the grid."""
        if not 0 < unit < self.num_units:
            return 0.0
        device = unit * self.unit
        link: Link = self.cluster.link_between(device - 1, device)
        # Replicas of one node queue at its only port.
        return (sharing if link.scope == "node" else 1) / link.bandwidth_bytes_per_s


def list_grids(cluster: Cluster) -> Iterator[Grid]:
    """One group first, then equal groups of whole nodes."""
    for groups in range(1, len(cluster.nodes) + 1):
        if groups == 1 or _is_periodic(cluster, groups):
            size = len(cluster.devices) // groups
            least = -(-size // MAX_UNITS)
            # When no unit of a good size divides the devices, a few of them stay idle.
            fitting = (u for u in range(least, 2 * least + 1) if size % u == 0)
            yield Grid(cluster, unit=next(fitting, least), groups=groups)


def _is_periodic(cluster: Cluster, groups: int) -> bool:
    size, rest = divmod(len(cluster.nodes), groups)
    return not rest and all(
        cluster.nodes[n].devices == cluster.nodes[n % size].devices
        for n in range(len(cluster.nodes))
    )
