"""Fit the laws of links to `collectives.csv.gz` of a folder of measurements.

    python -m tools.fit_links FOLDER

Writes `profiles/laws/links.toml`. The ring figures come from back-to-back collectives inside a
node; sends from the medians of large messages. Half of the sizes, by a hash, judge the fit.
"""

from __future__ import annotations

import math
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy

from graphplan.cost.laws.gemm import Floats
from graphplan.cost.links import Collective, collective_time
from graphplan.nouns.cluster import Link, LinkLaw
from tools.fit_gpu import PROFILES, descend
from tools.gpu_data import Row, read_rows

COLLECTIVES: dict[str, Collective] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
}  # fmt: skip
STARTS = {"start_us": 6.0, "hop_us": 1.0, "efficiency": 0.9, "ends": 0.8, "half_mb": 30.0,
          "ramp": 0.7, "crowding": 0.01, "once": 0.85, "ends_once": 0.8}  # fmt: skip
PULLS = {"start_us": 0.1, "hop_us": 0.1, "efficiency": 0.1, "ends": 0.3, "half_mb": 0.1,
         "ramp": 2.0, "crowding": 3.0, "once": 1.0, "ends_once": 0.3}  # fmt: skip


class Kind(NamedTuple):
    """Rows that show a kind of link: devices, source, link, nodes; its wire in GB/s; its sends."""

    device: str
    source: str
    link: str
    wire: float
    send: float
    latency_us: float


HEAD = """\
# What kinds of links reach of their bandwidth: fitted by tools/fit_links.py.
# `error`: mean error of collectives of all sizes that were not fitted.
"""
KINDS = {
    "nvlink-a100": Kind("A100-SXM4-80GB", "aiconfigurator", "nvlink", 300, 0.75, 8),
    "nvlink-h100": Kind("H100 80GB HBM3", "aiconfigurator", "nvlink", 450, 0.75, 6),
    "nvlink-b200": Kind("B200", "aiconfigurator", "nvlink", 900, 0.75, 6),
    "pcie": Kind("L40S", "aiconfigurator", "pcie", 24, 0.83, 6),
}
"""`send`: large send_recv on A100 and H100 (Vidur), two devices on L40S; assumed for B200."""


def read_kind(folder: Path, kind: Kind) -> list[tuple[Row, Collective, int, float, float]]:
    """(row, collective, devices, bytes, seconds) of a kind of link."""
    return [
        (row, COLLECTIVES[row["op"]], int(row["num_gpus"]), float(row["bytes"]),
         float(row["seconds"]))
        for row in read_rows(folder / "collectives.csv.gz")
        if row["device"] == kind.device and row["source"].startswith(kind.source)
        and row["link"] == kind.link and row["op"] in COLLECTIVES and not row["note"]
    ]  # fmt: skip


def is_held_out(row: Row) -> bool:
    """Whether a row judges the fit."""
    return bool(zlib.crc32(repr((row["op"], row["num_gpus"], row["bytes"])).encode()) & 1)


def make_link(kind: Kind, figures: dict[str, float]) -> Link:
    """The link that some figures describe, its efficiency over the wire."""
    law = LinkLaw(
        efficiency=figures["efficiency"] / kind.send, start_s=figures["start_us"] * 1e-6,
        hop_s=figures["hop_us"] * 1e-6, ends=figures["ends"], once=figures["once"],
        half_bytes=figures["half_mb"] * 1e6, ramp=figures["ramp"], crowding=figures["crowding"],
        ends_once=figures["ends_once"],
    )  # fmt: skip
    return Link(bandwidth_bytes_per_s=kind.wire * kind.send * 1e9, latency_s=0.0, law=law)


def fit_kind(folder: Path, kind: Kind) -> tuple[dict[str, float], float, int]:
    """Figures of a kind of link, their error on sizes that were not fitted, and rows."""
    rows = read_kind(folder, kind)
    fitted = [each for each in rows if not is_held_out(each[0])]
    names = list(STARTS)
    starts = STARTS | ({"crowding": 2.0, "half_mb": 0.2} if kind.link == "pcie" else {})
    start = numpy.log([starts[name] for name in names])
    pull = numpy.array([PULLS[name] for name in names])
    goal = numpy.log([each[4] for each in fitted])

    def find_errors(values: Floats) -> Floats:
        link = make_link(kind, dict(zip(names, numpy.exp(values).tolist(), strict=True)))
        priced = [collective_time(link, op, count, size) for _, op, count, size, _ in fitted]
        return numpy.concatenate([numpy.log(priced) - goal, pull * (values - start)])

    values = numpy.exp(descend(find_errors, start)).tolist()
    figures = dict(zip(names, values, strict=True))
    link = make_link(kind, figures)
    judged = [each for each in rows if is_held_out(each[0])]
    errors = [
        abs(collective_time(link, op, n, size) / taken - 1) for _, op, n, size, taken in judged
    ]
    return figures, math.fsum(errors) / len(errors), len(rows)


def main() -> None:
    """Fit every kind, and write the file."""
    folder = Path(sys.argv[1])
    parts = [HEAD]
    found = {}
    for name, kind in KINDS.items():
        figures, error, num = fit_kind(folder, kind)
        found[name] = figures
        source = f"{num} collectives of 2, 4 and 8 {kind.device}, {kind.source}"
        parts.append(format_kind(name, figures, kind.send, source, error))
        print(f"{name:13s} {error:6.1%}", file=sys.stderr)
    switched = [found[name] for name in KINDS if name.startswith("nvlink")]
    mean = {key: math.exp(math.fsum(math.log(each[key]) for each in switched) / len(switched))
            for key in STARTS}  # fmt: skip
    parts.append(format_kind("nvlink", mean, 0.75, "mean of A100, H100 and B200", None))
    network = {"start_us": 20.0, "hop_us": 4.0, "efficiency": 0.88, "ends": 0.0, "half_mb": 1.0,
               "ramp": 1.0, "crowding": 0.001, "once": 1.0, "ends_once": 0.0}  # fmt: skip
    source = (
        "all-gathers of 2 and 4 nodes (Mist: 11 of 12.5 GB/s a node); sends of H100 and A40 nodes"
    )
    parts.append(format_kind("network", network, 0.72, source, None))
    (PROFILES / "laws" / "links.toml").write_text("\n".join(parts))


def format_kind(
    name: str, figures: dict[str, float], send: float, source: str, error: float | None
) -> str:
    """A kind of link as the file writes it."""
    lines = [f"[links.{name}]", f'source = "{source}"']
    lines += [f"error = {error:.3f}"] if error is not None else []
    lines += [f"send = {send:g}", *(f"{key} = {value:.4g}" for key, value in figures.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
