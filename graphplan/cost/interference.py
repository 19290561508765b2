"""Interference: what computing, collectives and copies take from each other when they run at once.

While a part p runs beside others, it progresses at 1 / (1 + sum of c[p, q] over the parts q beside
it): a product loses multiprocessors and memory bandwidth to a collective, collectives between nodes
share the host's links with copies. When a part ends, the others go on faster. The coefficients of a
kind of link stand in `profiles/laws/interference.toml`, fitted by tools/fit_interference.py: twelve
of them a kind, to the seconds until large 16-bit products, all-gathers and copies of pinned memory
that start at once are all done, on A100 and V100, inside a node and between nodes.

Assumptions, and when they break: effects add up, whatever the sizes; products are large (they fill
the device); all parts start at once. What was measured of NVLink holds for every link of its class
(`FAST_BYTES_PER_S`), what was measured of a network for slower ones, PCIe among them: guesses where
nobody measured. Where processors carry the messages, nothing is gained by doing both at once.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Sequence
from typing import Literal

import numpy
from numpy.typing import NDArray

from graphplan.errors import UnknownName
from graphplan.nouns.cluster import Cluster

Floats = NDArray[numpy.float64]
Part = Literal["compute", "collective", "to_device", "to_host"]
PARTS: tuple[Part, ...] = ("compute", "collective", "to_device", "to_host")


FAST_BYTES_PER_S = 100e9


def find_reduction_law(cluster: Cluster, devices: Sequence[int]) -> tuple[float, float]:
    """By which share computing takes longer beside a collective of these devices, and the
    collective beside computing."""
    kinds = [cluster.devices[device].type for device in devices]
    nodes = {cluster.devices[device].node for device in devices}
    link = cluster.link if len(nodes) > 1 else cluster.nodes[min(nodes)].link
    if link.host_s or link.host_s_per_byte:
        return 1.0, 1.0
    if any(kind.torch_device != "cuda" for kind in kinds):
        return 0.0, 0.0
    is_fast = len(nodes) == 1 and link.bandwidth_bytes_per_s >= FAST_BYTES_PER_S
    name = "nvlink" if is_fast else "network"
    old = "-v100" if any(kind.name.startswith("v100") for kind in kinds) else ""
    law = load_coefficients()[name + old]
    compute, collective = PARTS.index("compute"), PARTS.index("collective")
    return float(law[compute, collective]), float(law[collective, compute])


def overlap_seconds(alone_s: Floats, coefficients: Floats) -> Floats:
    """Seconds until all parts are done; [case, part] of seconds alone, c[part, other part]."""
    left = alone_s.astype(float).copy()
    total = numpy.zeros(len(left))
    for _ in PARTS:
        active = left > 0
        slow = 1 + active.astype(float) @ coefficients.T
        needed = numpy.where(active, left * slow, numpy.inf).min(axis=1)
        step = numpy.where(numpy.isfinite(needed), needed, 0.0)
        done = numpy.where(active, step[:, None] / slow, 0.0)
        left = numpy.where(left - done > 1e-12 * alone_s, left - done, 0.0)
        total += step
    return total


def slow_down(kind: str, part: Part, *beside: Part) -> float:
    """How much longer a part takes while others run beside it, over a kind of link."""
    known = load_coefficients()
    if kind not in known:
        raise UnknownName("kind of interference", kind, known)
    row = known[kind][PARTS.index(part)]
    return 1.0 + sum(float(row[PARTS.index(each)]) for each in beside if each != part)


@functools.cache
def load_coefficients() -> dict[str, Floats]:
    """c[part, other part] by kind of link: `nvlink`, `network`, …"""
    path = importlib.resources.files("graphplan_profiles").joinpath("laws", "interference.toml")
    content = tomllib.loads(path.read_text("utf-8"))
    return {
        kind: numpy.array([[each[part].get(other, 0.0) for other in PARTS] for part in PARTS])
        for kind, each in content["interference"].items()
    }
