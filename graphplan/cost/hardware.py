"""Hardware: device types and clusters by name or from a TOML file.

Files use the units of datasheets (GiB, GB/s, microseconds, TFLOPS); nouns use bytes and seconds.
A cluster file may override any figure of a device type or describe a new one; see
profiles/README.md for an example with every field.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from graphplan.cost.tomlfile import bad_field, convert_toml, find_line, parse_toml
from graphplan.errors import InvalidOption, UnknownName
from graphplan.files import read_bytes, read_noun
from graphplan.nouns.base import MAX_DEVICES
from graphplan.nouns.cluster import Cluster, DeviceType, Law, Link, LinkLaw, Node

DEFAULT_CLUSTER = "dgx-a100"

Folder = Literal["hardware", "clusters", "laws"]
Positive = Annotated[float, Meta(gt=0, le=1e12)]
NotNegative = Annotated[float, Meta(ge=0, le=1e12)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=65536)]

CLUSTER_EXAMPLE = """\
name = "lab"
usable_memory = 0.9
link = { bandwidth_gb_per_s = 12.5, latency_us = 10, scope = "node" }

[[nodes]]
count = 2
devices = { a100-80gb = 8 }
link = { bandwidth_gb_per_s = 300, latency_us = 4, scope = "device" }

[types.a100-80gb]
memory_gib = 60
"""


class TypeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device type as its file writes it."""

    name: str
    title: str = ""
    memory_gib: Positive
    bandwidth_gb_per_s: Positive
    tflops_per_s: Annotated[dict[str, Positive], Meta(min_length=1)]
    num_sms: Annotated[int, Meta(ge=0, le=65536)] = 0
    cache_mib: NotNegative = 0.0
    laws: dict[str, Law] = {}
    residual: str | None = None
    host_us: NotNegative = 0.0
    op_us: dict[str, NotNegative] = {}
    """A user's hint: time of ops beyond their estimate, `my_op.forward`, `my_op`."""
    launch_us: NotNegative = 5.0
    torch_device: str = "cuda"
    torch_names: tuple[str, ...] = ()
    """Parts of the name that torch reports for such a device."""
    source: str = ""


class LinkFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link as a cluster file writes it."""

    bandwidth_gb_per_s: Positive
    latency_us: NotNegative
    scope: Literal["pair", "device", "node"] = "pair"
    kind: str | None = None
    """Laws of the link in profiles/laws/links.toml; by default those of the class."""


class LinkLawFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a kind of link reaches, as profiles/laws/links.toml writes it."""

    send: Share
    """Share of the bandwidth that one message reaches."""
    efficiency: Positive
    """Share that a collective of many devices reaches."""
    start_us: NotNegative
    hop_us: NotNegative
    ends: NotNegative
    ends_once: NotNegative
    half_mb: NotNegative
    ramp: NotNegative
    crowding: NotNegative
    once: Positive
    error: float | None = None
    source: str = ""


class NodeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` equal nodes; `devices` says how many of which type each has, in this order."""

    devices: Annotated[dict[str, Count], Meta(min_length=1)]
    link: LinkFile
    count: Count = 1


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster as its file writes it."""

    name: str
    title: str = ""
    source: str = ""
    usable_memory: Share = 0.9
    link: LinkFile
    nodes: Annotated[tuple[NodeFile, ...], Meta(min_length=1)]
    types: dict[str, dict[str, Any]] = {}


MOST_GPUS = MAX_DEVICES
"""Clusters are lists of devices: larger ones would fill the memory of the planner."""


def find_cluster(name_or_path: str | None = None, *, gpus: int | None = None) -> Cluster:
    """The cluster of a profile name or a file, brought to `gpus` devices.

    A profile is a pattern: its nodes repeat until there are `gpus` devices. A file describes what
    there is: `gpus` takes the first so many of it.
    """
    if gpus is not None and gpus < 1:
        raise InvalidOption(f"{gpus} GPUs are too few.", remedy="Give --gpus 1 or more.")
    if gpus is not None and gpus > MOST_GPUS:
        raise InvalidOption(
            f"{gpus} GPUs are too many.", remedy=f"Give at most --gpus {MOST_GPUS}."
        )
    name = name_or_path or DEFAULT_CLUSTER
    if name.endswith(".json"):
        return _take_devices(read_noun(name, Cluster), gpus)
    if name.endswith(".toml") or "/" in name or "\\" in name:
        text = read_bytes(Path(name)).decode("utf-8", errors="replace")
        return _take_devices(parse_cluster(text, name=name), gpus)
    files = _list_files("clusters")
    if name not in files:
        raise UnknownName("cluster", name, files)
    cluster = parse_cluster(files[name].read_text("utf-8"), name=f"{name}.toml")
    return _repeat_nodes(cluster, gpus) if gpus else cluster


def compile_cluster(cluster: Cluster) -> Cluster:
    """The cluster as a compiler uses it: kernels joined, and issued without the host."""
    types = [msgspec.structs.replace(kind, host_s=0.0, fuses=True) for kind in cluster.types]
    return msgspec.structs.replace(cluster, types=tuple(types))


def find_device_type(name: str) -> DeviceType:
    """The device type of a hardware profile."""
    return _to_device_type(_find_type_file(name))


def name_device(torch_name: str) -> str | None:
    """The hardware profile of a device that torch calls so, None when there is none."""
    for name in _list_files("hardware"):
        parts = (re.escape(part) for part in _find_type_file(name).torch_names)
        if any(re.search(rf"(?<!\w){part}(?!\w)", torch_name, re.IGNORECASE) for part in parts):
            return name
    return None


def list_clusters() -> tuple[str, ...]:
    """Names of the cluster profiles."""
    return tuple(_list_files("clusters"))


def list_device_types() -> tuple[str, ...]:
    """Names of the hardware profiles."""
    return tuple(_list_files("hardware"))


def read_title(name: str, *, folder: Folder = "clusters") -> str:
    """What a profile calls itself."""
    text = _list_files(folder)[name].read_text("utf-8")
    return str(parse_toml(text, name=name, example="").get("title", ""))


def parse_cluster(text: str, *, name: str) -> Cluster:
    """The cluster that a TOML text describes; `name` stands in the errors."""
    content = parse_toml(text, name=name, example=CLUSTER_EXAMPLE)
    file = convert_toml(content, ClusterFile, text, name=name, example=CLUSTER_EXAMPLE)
    types = _collect_types(file, text, name=name)
    on_gpus = all(each.torch_device == "cuda" for each in types)
    nodes = [
        Node(devices=_expand_devices(each.devices), link=link)
        for each in file.nodes
        for link in [_to_link(each.link, _name_class(each.link, inside=True) if on_gpus else None)]
        for _ in range(each.count)
    ]
    return Cluster(
        name=file.name,
        types=types,
        nodes=tuple(nodes),
        link=_to_link(file.link, _name_class(file.link, inside=False) if on_gpus else None),
        usable_memory=file.usable_memory,
    )


def _collect_types(file: ClusterFile, text: str, *, name: str) -> tuple[DeviceType, ...]:
    """The types that the nodes use: profiles, with the file's own figures on top."""
    used = dict.fromkeys(kind for node in file.nodes for kind in node.devices)
    for kind in used:
        if kind not in file.types and kind not in _list_files("hardware"):
            index = next(i for i, node in enumerate(file.nodes) if kind in node.devices)
            line = find_line(text, ("nodes", index, "devices"))
            hint = UnknownName("device type", kind, {**file.types, **_list_files("hardware")})
            what = f"names the unknown device type {kind!r}. {hint.remedy.rstrip('.')}"
            raise bad_field(name, line, ("nodes", index, "devices"), what, CLUSTER_EXAMPLE)
    for kind in file.types:
        if kind not in used:
            line = find_line(text, ("types", kind))
            what = "describes a device type that no node has"
            raise bad_field(name, line, ("types", kind), what, CLUSTER_EXAMPLE)
    return tuple(_override_type(kind, file, text, name=name) for kind in used)


def _override_type(kind: str, file: ClusterFile, text: str, *, name: str) -> DeviceType:
    """A profile with the figures of the file's `[types.<kind>]` in place of its own."""
    own = dict(file.types.get(kind, {}))
    base = own.pop("based_on", kind if kind in _list_files("hardware") else None)
    content: dict[str, Any] = {}
    if base is not None:
        if base not in _list_files("hardware"):
            line = find_line(text, ("types", kind, "based_on"))
            hint = UnknownName("device type", str(base), _list_files("hardware")).remedy.rstrip(".")
            what = f"is {base!r}, which no profile describes. {hint}"
            raise bad_field(name, line, ("types", kind, "based_on"), what, CLUSTER_EXAMPLE)
        content = msgspec.to_builtins(_find_type_file(str(base)))
    merged = content | own | {"name": kind}
    path = ("types", kind)
    return _to_device_type(
        convert_toml(merged, TypeFile, text, name=name, example=CLUSTER_EXAMPLE, path=path)
    )


@functools.cache
def _find_type_file(name: str) -> TypeFile:
    files = _list_files("hardware")
    if name not in files:
        raise UnknownName("device type", name, files)
    text = files[name].read_text("utf-8")
    content = parse_toml(text, name=f"{name}.toml", example="")
    return convert_toml(content, TypeFile, text, name=f"{name}.toml", example="")


@functools.cache
def _list_files(folder: Folder) -> dict[str, Traversable]:
    """The profiles of a folder by name, sorted."""
    entries = importlib.resources.files("graphplan_profiles").joinpath(folder).iterdir()
    named = {each.name.removesuffix(".toml"): each for each in entries}
    return {name: named[name] for name in sorted(named) if named[name].name.endswith(".toml")}


def _to_device_type(file: TypeFile) -> DeviceType:
    return DeviceType(
        name=file.name,
        memory_bytes=int(file.memory_gib * 2**30),
        bandwidth_bytes_per_s=file.bandwidth_gb_per_s * 1e9,
        flops_per_s_by_dtype={k: rate * 1e12 for k, rate in file.tflops_per_s.items()},
        num_units=file.num_sms,
        cache_bytes=int(file.cache_mib * 2**20),
        laws=_default_laws(file.torch_device) | file.laws,
        residual=file.residual,
        host_s=file.host_us * 1e-6,
        overhead_s_by_kind={kind: time * 1e-6 for kind, time in file.op_us.items()},
        launch_s=file.launch_us * 1e-6,
        torch_device=file.torch_device,
        source=file.source,
    )


@functools.cache
def _default_laws(torch_device: str) -> dict[str, Law]:
    """The laws of a GPU of which only the datasheet is known."""
    if torch_device != "cuda":
        return {}
    text = _list_files("laws")["gpu"].read_text("utf-8")
    content = parse_toml(text, name="gpu.toml", example="")
    return convert_toml(content["laws"], dict[str, Law], text, name="gpu.toml", example="")


PCIE_GB_PER_S = 40.0
"""Links inside a node that are slower than this are taken for PCIe."""


def _name_class(file: LinkFile, *, inside: bool) -> str:
    """The kind of a link that names none: by place and bandwidth."""
    if not inside:
        return "network"
    return "pcie" if file.bandwidth_gb_per_s < PCIE_GB_PER_S else "nvlink"


@functools.cache
def _link_laws() -> dict[str, LinkLawFile]:
    text = _list_files("laws")["links"].read_text("utf-8")
    content = parse_toml(text, name="links.toml", example="")
    return convert_toml(content["links"], dict[str, LinkLawFile], text, name="links.toml",
                        example="")  # fmt: skip


def _to_link(file: LinkFile, default_kind: str | None) -> Link:
    """The link as messages find it, with the law of its kind for collectives."""
    kind, wire = file.kind or default_kind, file.bandwidth_gb_per_s * 1e9
    if kind is None:
        return Link(bandwidth_bytes_per_s=wire, latency_s=file.latency_us * 1e-6, scope=file.scope)
    if kind not in _link_laws():
        raise UnknownName("kind of link", kind, _link_laws())
    law = _link_laws()[kind]
    return Link(
        bandwidth_bytes_per_s=wire * law.send,
        latency_s=file.latency_us * 1e-6,
        scope=file.scope,
        law=LinkLaw(
            efficiency=law.efficiency / law.send,
            start_s=law.start_us * 1e-6,
            hop_s=law.hop_us * 1e-6,
            ends=law.ends,
            ends_once=law.ends_once,
            half_bytes=law.half_mb * 1e6,
            ramp=law.ramp,
            crowding=law.crowding,
            once=law.once,
            error=law.error,
            source=law.source,
        ),
    )


def _expand_devices(count_by_type: dict[str, int]) -> tuple[str, ...]:
    return tuple(kind for kind, count in count_by_type.items() for _ in range(count))


def _repeat_nodes(cluster: Cluster, gpus: int) -> Cluster:
    """The cluster's nodes, repeated in order until there are `gpus` devices; the last is cut."""
    nodes: list[Node] = []
    left = gpus
    while left:
        node = cluster.nodes[len(nodes) % len(cluster.nodes)]
        nodes.append(msgspec.structs.replace(node, devices=node.devices[:left]))
        left -= len(nodes[-1].devices)
    return _keep_used_types(msgspec.structs.replace(cluster, nodes=tuple(nodes)))


def _take_devices(cluster: Cluster, gpus: int | None) -> Cluster:
    """The first `gpus` devices of a described cluster."""
    if gpus is None:
        return cluster
    if gpus > len(cluster.devices):
        raise InvalidOption(
            f"Cluster {cluster.name!r} has {len(cluster.devices)} devices, fewer than the {gpus}"
            " asked for.",
            remedy=f"Give --gpus {len(cluster.devices)} or less, or add nodes to the cluster file.",
        )
    return _repeat_nodes(cluster, gpus)


def _keep_used_types(cluster: Cluster) -> Cluster:
    used = {name for node in cluster.nodes for name in node.devices}
    types = tuple(kind for kind in cluster.types if kind.name in used)
    return msgspec.structs.replace(cluster, types=types)
