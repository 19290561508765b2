"""Cluster: the machine park, its device types, nodes and links.

Links have two levels: inside a node and between nodes. A message occupies one *channel* while its
bytes pass and arrives one latency later; `scope` says who shares a channel: `pair` (every ordered
pair of devices has a wire of its own), `device` (one port out of each device, as with a switch), or
`node` (one port out of each node, as with a single network card).
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from graphplan.nouns.base import MAX_DEVICES, MAX_SECONDS, Noun
from graphplan.nouns.names import check_label

POSITIVE_FIGURES = ("efficiency", "memory", "fill", "sharp", "long", "winograd",
                    "winograd_fill", "backward")  # fmt: skip
"""Figures that laws divide by."""


class Law(Noun, frozen=True, kw_only=True):
    """Figures of a class of kernels on a device (cost/laws), and how far they can be trusted."""

    figures: dict[str, float]
    error: float | None = None
    """Mean relative error on measurements that were not fitted; None: not validated."""
    source: str = ""

    def __post_init__(self) -> None:
        if not all(abs(value) < MAX_SECONDS for value in self.figures.values()):
            raise ValueError("a law has a figure that is not finite")
        if not all(self.figures.get(name, 1.0) > 0 for name in POSITIVE_FIGURES):
            raise ValueError(f"{', '.join(POSITIVE_FIGURES)} of a law must be positive")


class DeviceType(Noun, frozen=True, kw_only=True):
    """A kind of accelerator; rates are peaks of the vendor, laws say what kernels reach."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    """Of the device's own memory."""
    flops_per_s_by_dtype: dict[str, float]
    num_units: int = 0
    """Multiprocessors over which the tiles of an op spread; 0: work divides at will."""
    cache_bytes: int = 0
    """Of the last cache before the memory."""
    laws: dict[str, Law] = {}
    """Figures by class of kernel: `gemm`, `gemm-float32`, `attention`, `stream`, `softmax`, …"""
    residual: str | None = None
    """The chip as which learned residuals of the laws know this device; None: laws alone."""
    scale_by_kind: dict[str, float] = {}
    """Measured over estimated seconds of a pass of an op, fitted by calibration: `gelu.forward`."""
    overhead_s_by_kind: dict[str, float] = {}
    """Time that an op takes beyond the scaled estimate, by the same names."""
    host_s: float = 0.0
    """What the host takes to issue one kernel; 0: kernels are recorded once and replayed."""
    fuses: bool = False
    """Whether a compiler joins neighbouring elementwise kernels."""
    launch_s: float = 5e-6
    """Between two kernels on the device, where a law does not say."""
    task_s: float = 0.0
    """What the runtime takes for a task beyond its ops."""
    update_s_per_element: float | None = None
    """Optimizer step of one trained element; None: by the bytes that it moves."""
    torch_device: str = "cuda"
    source: str = ""

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0 or self.bandwidth_bytes_per_s <= 0 or self.launch_s < 0:
            raise ValueError(f"device type {self.name!r}: memory and bandwidth must be positive")
        if self.task_s < 0:
            raise ValueError(f"device type {self.name!r}: task_s must be at least 0")
        check_label(self.name)
        if max(self.launch_s, self.task_s, self.update_s_per_element or 0.0) > MAX_SECONDS:
            raise ValueError(f"device type {self.name!r}: a time exceeds {MAX_SECONDS:g} s")
        rates = (self.bandwidth_bytes_per_s, *self.flops_per_s_by_dtype.values())
        if not self.flops_per_s_by_dtype or min(rates) < 1:
            raise ValueError(f"device type {self.name!r}: needs rates of at least 1 a second")
        if min(self.num_units, self.cache_bytes, self.host_s) < 0:
            raise ValueError(
                f"device type {self.name!r}: units, cache and host_s must be at least 0"
            )
        if not all(0 < scale < MAX_SECONDS for scale in self.scale_by_kind.values()):
            raise ValueError(f"device type {self.name!r}: scales must be positive")


class LinkLaw(Noun, frozen=True, kw_only=True):
    """What collectives reach of a link, by their size (cost/links.py)."""

    efficiency: float
    """Bandwidth that many devices reach with large buffers, over that of a message alone."""
    start_s: float = 0.0
    hop_s: float = 0.0
    ends: float = 0.0
    """n devices reach n / (n + ends) of that in an all-reduce."""
    ends_once: float = 0.0
    """The same of gathering and scattering."""
    half_bytes: float = 0.0
    ramp: float = 1.0
    """Below `half_bytes` less of the bandwidth is reached, the more so the higher `ramp`."""
    crowding: float = 0.0
    """Power by which the share of a device falls with their number, where a host carries all."""
    once: float = 1.0
    """What gathering and scattering reach of the bandwidth of an all-reduce."""
    error: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < min(self.efficiency, self.once) <= max(self.efficiency, self.once) < 1e3:
            raise ValueError("efficiencies of a link must be positive")
        others = (self.start_s, self.hop_s, self.ends, self.ends_once, self.half_bytes, self.ramp,
                  self.crowding)  # fmt: skip
        if not 0 <= min(others) <= max(others) < MAX_SECONDS:
            raise ValueError("figures of a link's law must be at least 0")


class Link(Noun, frozen=True, kw_only=True):
    """A connection: bandwidth of one channel in one direction, latency, who shares the channel."""

    bandwidth_bytes_per_s: float
    latency_s: float
    scope: Literal["pair", "device", "node"] = "pair"
    host_s: float = 0.0
    """Time that a message takes from the tasks of each of its ends, where the processor that
    computes also carries it; bandwidth and latency are what comes between the two ends."""
    host_s_per_byte: float = 0.0
    reduce_s: float | None = None
    """A message of an all-reduce from one end to the other, with all that the ends do for it; None
    where it was not measured, and counts as any other message."""
    reduce_s_per_byte: float = 0.0
    law: LinkLaw | None = None
    """None: collectives are rings and trees of messages, as in textbooks."""

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s < 1 or not 0 <= self.latency_s <= MAX_SECONDS:
            raise ValueError("a link needs a positive bandwidth and a latency of at least 0")
        if min(self.host_s, self.host_s_per_byte, self.reduce_s or 0, self.reduce_s_per_byte) < 0:
            raise ValueError("a link cannot give time back to its ends")

    def host_time(self, num_bytes: float) -> float:
        """Seconds that a message takes from each of its ends."""
        return self.host_s + num_bytes * self.host_s_per_byte


class Node(Noun, frozen=True, kw_only=True):
    """One host: the types of its devices in order, and the link between them."""

    devices: tuple[str, ...]
    link: Link


class Device(Noun, frozen=True, kw_only=True):
    """One accelerator of the cluster: its number, type and node."""

    index: int
    type: DeviceType
    node: int
    memory_bytes: int
    """Usable memory."""


class Cluster(Noun, frozen=True, kw_only=True, dict=True):
    """Nodes of devices and the link between nodes; devices are numbered node by node."""

    format: Literal["graphplan/cluster"] = "graphplan/cluster"
    version: Literal[1] = 1
    name: str
    types: tuple[DeviceType, ...]
    nodes: tuple[Node, ...]
    link: Link
    """Between any two nodes."""
    usable_memory: float = 0.9
    """Share of a device's memory that a plan may fill: the rest is for the framework, the
    communication library and fragmentation."""

    def __post_init__(self) -> None:
        check_label(self.name)
        if sum(len(node.devices) for node in self.nodes) > MAX_DEVICES:
            raise ValueError(f"a cluster has more than {MAX_DEVICES:,} devices")
        known = {kind.name for kind in self.types}
        if len(known) != len(self.types):
            raise ValueError("two device types have the same name")
        if not self.nodes or not all(node.devices for node in self.nodes):
            raise ValueError("a cluster needs at least one node with at least one device")
        for node in self.nodes:
            for name in node.devices:
                if name not in known:
                    raise ValueError(
                        f"device type {name!r} is not described; known: {sorted(known)}"
                    )
        if not 0 < self.usable_memory <= 1:
            raise ValueError(f"usable_memory is {self.usable_memory}, must lie in (0, 1]")

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device, numbered from 0; each has a byte at least, so that shares of it exist."""
        types = {kind.name: kind for kind in self.types}
        placed = [(types[name], n) for n, node in enumerate(self.nodes) for name in node.devices]
        return tuple(
            Device(
                index=i,
                type=kind,
                node=n,
                memory_bytes=max(1, int(kind.memory_bytes * self.usable_memory)),
            )
            for i, (kind, n) in enumerate(placed)
        )

    @property
    def links(self) -> tuple[Link, ...]:
        """Between the nodes, and inside each."""
        return (self.link, *(node.link for node in self.nodes))

    def link_between(self, src: int, dst: int) -> Link:
        """The link that a message between two different devices takes."""
        a, b = self.devices[src], self.devices[dst]
        return self.nodes[a.node].link if a.node == b.node else self.link

    def channel_between(self, src: int, dst: int) -> str:
        """Name of the channel that such a message occupies: `d0>d1`, `d0>`, `n0>`; between nodes
        `d0>>d9`, `d0>>`, `n0>>`."""
        link = self.link_between(src, dst)
        node = self.devices[src].node
        arrow = ">" if node == self.devices[dst].node else ">>"
        if link.scope == "pair":
            return f"d{src}{arrow}d{dst}"
        return f"d{src}{arrow}" if link.scope == "device" else f"n{node}{arrow}"
