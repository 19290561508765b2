"""Fit what parts of a step take from each other to `interference.csv.gz` of a folder.

    python -m tools.fit_interference FOLDER

Half of the rows, by a hash, judge the fit; the file says what error is left.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy

from graphplan.cost.interference import PARTS, overlap_seconds
from graphplan.cost.laws.gemm import Floats
from tools.fit_gpu import PROFILES, descend
from tools.gpu_data import read_rows

COLUMNS = ("gemm_alone_s", "all_gather_alone_s", "h2d_alone_s", "d2h_alone_s")
KINDS = {
    "nvlink": ("A100-SXM4-40GB", "1"), "network": ("A100-SXM4-40GB", "2"),
    "nvlink-v100": ("V100-SXM2-16GB", "1"), "network-v100": ("V100-SXM2-16GB", "2"),
}  # fmt: skip
NUM_FITTED = 1500
PULL = 0.3
START = 0.1


def read_kind(folder: Path, device: str, nodes: str) -> tuple[Floats, Floats, list[bool]]:
    """Seconds alone, seconds together, and which rows judge."""
    alone, together, held = [], [], []
    for row in read_rows(folder / "interference.csv.gz"):
        inside = row["nodes"] == "1"
        if row["device"] != device or inside != (nodes == "1"):
            continue
        seconds = [float(row[name] or 0) for name in COLUMNS]
        if sum(each > 0 for each in seconds) > 1:
            alone.append(seconds)
            together.append(float(row["together_s"]))
            held.append(bool(zlib.crc32(repr(seconds).encode()) & 1))
    return numpy.array(alone), numpy.array(together), held


def fit_kind(alone: Floats, together: Floats) -> Floats:
    """The coefficients of a kind of link."""
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    start = numpy.full(len(pairs), numpy.log(START))

    def build(values: Floats) -> Floats:
        found = numpy.zeros((4, 4))
        for (i, j), value in zip(pairs, numpy.exp(values), strict=True):
            found[i, j] = value
        return found

    def find_errors(values: Floats) -> Floats:
        priced = overlap_seconds(alone, build(values))
        return numpy.concatenate([numpy.log(priced / together), PULL * (values - start)])

    return build(descend(find_errors, start))


def main() -> None:
    """Fit every kind, and write the file."""
    lines = [
        "# What a part of a step loses to each other one beside it: tools/fit_interference.py."
    ]
    for kind, (device, nodes) in KINDS.items():
        alone, together, held = read_kind(Path(sys.argv[1]), device, nodes)
        judged = numpy.array(held)
        fitted = numpy.flatnonzero(~judged)
        fitted = numpy.random.default_rng(0).permutation(fitted)[:NUM_FITTED]
        found = fit_kind(alone[fitted], together[fitted])
        ratio = overlap_seconds(alone[judged], found) / together[judged]
        longest = alone[judged].max(axis=1) / together[judged]
        error, before = (float(numpy.abs(each - 1).mean()) for each in (ratio, longest))
        print(f"{kind:13s} {error:.1%}, the longest part alone {before:.1%}", file=sys.stderr)
        lines += ["", f"# {device}, {'one node' if nodes == '1' else '2 and 4 nodes'}: mean error"
                  f" {error:.1%} on {judged.sum()} rows that were not fitted; without interference"
                  f" {before:.1%}."]  # fmt: skip
        for i, part in enumerate(PARTS):
            row = ", ".join(f"{o} = {found[i, j]:.3f}" for j, o in enumerate(PARTS) if i != j)
            lines.append(f"interference.{kind}.{part} = {{ {row} }}")
    (PROFILES / "laws" / "interference.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
