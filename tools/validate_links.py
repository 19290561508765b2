"""Collectives and sends of a folder of measurements against the laws of links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy

from graphplan.cost.hardware import find_cluster
from graphplan.cost.links import collective_time
from graphplan.nouns.cluster import Link
from tools.fit_links import COLLECTIVES, is_held_out
from tools.gpu_data import Row, read_rows

LARGE_BYTES = 16_000_000
SMALL_BYTES = 65_536
CLUSTERS = {"A100-SXM4-80GB": "dgx-a100", "H100 80GB HBM3": "dgx-h100", "B200": "dgx-b200",
            "L40S": "pcie-8"}  # fmt: skip
NETWORKS = {"A100-SXM4-40GB": 12.5e9, "A100-SXM4-80GB": 25e9, "V100-SXM2-16GB": 4.4e9,
            "H100 80GB HBM3": 50e9, "A40": 3.1e9}  # fmt: skip
"""Wires between the nodes of the sources: what their machines have, or what they reach."""


def list_link_lines(folder: Path) -> Iterator[str]:
    """Collectives inside a node by size, then between nodes, then sends."""
    yield "| what | device | devices | rows | law |"
    yield "|---|---|---|---|---|"
    ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in read_rows(folder / "collectives.csv.gz"):
        for key, ratio in _judge(row):
            ratios[key].append(ratio)
    for (what, device, count), found in sorted(ratios.items()):
        error = numpy.abs(numpy.array(found) - 1).mean()
        law = f"{numpy.median(found):.2f}, {error:.1%}"
        yield f"| {what} | {device} | {count} | {len(found)} | {law} |"


def _judge(row: Row) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Predicted over measured of one row, under every heading that it belongs to."""
    device, op, size, taken = row["device"], row["op"], float(row["bytes"]), float(row["seconds"])
    count = int(row["num_gpus"])
    if row["link"] == "network":
        if device not in NETWORKS or not taken:
            return
        link = make_network(device)
        if op == "send_recv":
            if size >= 1 << 20:
                yield ("send, between nodes, >= 1 MB", device, "2"), _send(link, size) / taken
        elif op in COLLECTIVES and size >= LARGE_BYTES:
            shared = size * int(row["groups_at_once"])
            priced = collective_time(link, COLLECTIVES[op], count, shared)
            yield (
                (f"{op}, between nodes, >= 16 MB", device, row["nodes"] + " nodes"),
                priced / taken,
            )
        return
    if device not in CLUSTERS:
        return
    link = find_cluster(CLUSTERS[device]).nodes[0].link
    if op == "send_recv" and size >= 1 << 20:
        yield ("send, inside, >= 1 MB", device, "2"), _send(link, size) / taken
    nccl = row["source"].startswith("aiconfigurator") and not row["note"]
    if op in COLLECTIVES and nccl and is_held_out(row):
        ratio = collective_time(link, COLLECTIVES[op], count, size) / taken
        yield (f"{op}, all sizes", device, "2, 4, 8"), ratio
        if size >= LARGE_BYTES:
            yield (f"{op}, >= 16 MB", device, str(count)), ratio
        elif size <= SMALL_BYTES:
            yield (f"{op}, <= 64 kB", device, "2, 4, 8"), ratio


def make_network(device: str) -> Link:
    """The link between nodes of a source's machines."""
    import msgspec

    plain = find_cluster("dgx-a100").link
    wire = NETWORKS[device] / 25e9
    return msgspec.structs.replace(plain, bandwidth_bytes_per_s=plain.bandwidth_bytes_per_s * wire)


def _send(link: Link, size: float) -> float:
    return link.latency_s + size / link.bandwidth_bytes_per_s
