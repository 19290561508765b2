"""Reading a folder of GPU measurements: kernels with their seconds, by class and device.

The folder holds `gemm.csv.gz`, `attention.csv.gz`, `ops.csv.gz` and `collectives.csv.gz` with one
header line each, seconds and bytes; its README says where the rows come from. A row is a kernel of
`graphplan.cost.laws` and what it took. Shapes are split in two by a hash of their sizes: laws are
fitted to one half, and every printed error is that of the other.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy

from graphplan.cost.laws.gemm import Floats
from graphplan.cost.laws.kernel import Attention, Convolution, Kernel, Product, Rows, Stream

PROFILES = {
    "A100-SXM4-80GB": "a100-80gb", "H100 80GB HBM3": "h100", "L40S": "l40s", "B200": "b200",
    "A100-PCIE-40GB": "a100-40gb-pcie", "A100 80GB PCIe": "a100-80gb-pcie",
    "V100-PCIE-32GB": "v100-32gb-pcie", "T4": "t4", "L4": "l4",
}  # fmt: skip
"""Hardware profiles by the names that the folder uses."""
NODE_PROFILES = {
    "A100-PCIE-40GB": "a100-40gb-pcie", "A100-80GB-PCIe": "a100-80gb-pcie",
    "V100-PCIE-32GB": "v100-32gb-pcie", "L4": "l4", "T4": "t4",
}  # fmt: skip
"""The same by the names of the files in `models/`."""
FITTED_FAMILIES = ("bert", "opt")
"""Models whose nodes laws may be fitted to; those of the others (gpt2, gpt3) judge."""
LEAST_EAGER_S = 2e-4
"""Rows of eager sweeps below this show the call from an idle queue, not the kernel."""
PASSES_BY_OP = {
    "add": 3, "mul": 3, "div": 3, "pow": 3, "add_scalar": 2, "mul_scalar": 2, "div_scalar": 2,
    "pow_scalar": 2, "relu": 2, "gelu": 2, "tanh": 2,
}  # fmt: skip
Row = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Measured kernels of one class on one device."""

    kernels: tuple[Kernel, ...]
    seconds: Floats

    def __len__(self) -> int:
        return len(self.kernels)

    def select(self, chosen: Callable[[Kernel], bool]) -> Sample:
        """The kernels that are chosen."""
        return self.take([i for i, kernel in enumerate(self.kernels) if chosen(kernel)])

    def take(self, places: Sequence[int]) -> Sample:
        """The kernels at some places."""
        return Sample(tuple(self.kernels[i] for i in places), self.seconds[list(places)])


Samples = dict[tuple[str, str], Sample]
"""By class of kernel and profile of the device."""


def read_rows(path: Path) -> Iterable[Row]:
    """The rows of a file, compressed or not; none where there is no such file."""
    if not path.exists():
        return
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    yield from csv.DictReader(text.splitlines())


def is_held_out(kernel: Kernel) -> bool:
    """Whether a shape judges the laws rather than fits them; the same on every device."""
    return bool(zlib.crc32(repr(tuple(kernel)).encode()) & 1)


def read_samples(folder: Path) -> Samples:
    """All kernels of the folder."""
    found: dict[tuple[str, str], list[tuple[Kernel, float]]] = defaultdict(list)
    for row in read_rows(folder / "gemm.csv.gz"):
        if row["note"] != "cached":
            sizes = (int(row[name]) for name in ("m", "n", "k"))
            _add(found, "gemm", row, Product(row["dtype"], 2, 1, *sizes))
    for row in read_rows(folder / "attention.csv.gz"):
        _add(found, "attention", row, _read_attention(row))
    for row in read_rows(folder / "ops.csv.gz"):
        if "sweep" in row["source"] and float(row["forward_s"]) >= LEAST_EAGER_S:
            name, kernel = _read_op(row)
            if kernel is not None and row["note"] != "winograd":
                _add(found, name, row, kernel)
    return _collect(found)


def read_nodes(folder: Path, families: Sequence[str]) -> Samples:
    """Products of the forwards of training and inference steps, each timed alone."""
    found: dict[tuple[str, str], list[tuple[Kernel, float]]] = defaultdict(list)
    for path in sorted((folder / "models").glob("*.csv.gz")):
        device, _, model = path.name.partition("_")
        profile = NODE_PROFILES.get(device)
        if profile is None or not model.startswith(tuple(families)):
            continue
        for row in read_rows(path):
            product = _read_node(row) if float(row["forward_s"] or 0) >= LEAST_EAGER_S else None
            if product is not None:
                name = "gemm-float32" if product.batch == 1 else "bmm-float32"
                found[name, profile].append((product, float(row["forward_s"])))
    return _collect(found)


def _read_node(row: Row) -> Product | None:
    """The product of a node of a traced step, if it is one."""
    if row["target"] not in ("Linear", "addmm", "matmul", "bmm"):
        return None
    inputs, result = json.loads(row["input_shapes"]), json.loads(row["output_shape"])
    inner = inputs[1 if row["target"] == "addmm" else 0][-1]
    if row["target"] in ("Linear", "addmm"):
        return Product("float32", 4, 1, math.prod(result[:-1]), result[-1], inner)
    return Product("float32", 4, math.prod(result[:-2]), result[-2], result[-1], inner)


def _collect(found: Mapping[tuple[str, str], list[tuple[Kernel, float]]]) -> Samples:
    return {
        key: Sample(tuple(k for k, _ in pairs), numpy.array([s for _, s in pairs]))
        for key, pairs in found.items()
    }


def _add(
    found: dict[tuple[str, str], list[tuple[Kernel, float]]], name: str, row: Row, kernel: Kernel
) -> None:
    if row["device"] in PROFILES:
        found[name, PROFILES[row["device"]]].append((kernel, float(row["forward_s"])))


def _read_attention(row: Row) -> Attention:
    heads, length = int(row["heads"]), int(row["sequence"])
    return Attention(
        row["dtype"], 2, int(row["batch"]), heads, int(row["kv_heads"]), length, length,
        int(row["head_dim"]), True, False,
    )  # fmt: skip


def _read_op(row: Row) -> tuple[str, Kernel | None]:
    """The class and the kernel of a row of a sweep in 32 bits."""
    op = row["op"]
    if op in ("linear", "bmm"):
        batch, *sizes = (int(row[name]) for name in ("batch", "m", "n", "k"))
        name = "gemm-float32" if batch == 1 else "bmm-float32"
        return name, Product("float32", 4, batch, *sizes)
    if op == "conv":
        return "conv-float32", _read_convolution(row)
    sizes = [int(row["rows"] or 0), int(row["columns"] or 0)]
    if op in ("layer_norm", "softmax"):
        kind = "norm" if op == "layer_norm" else "softmax"
        return kind, Rows("norm" if op == "layer_norm" else "softmax", 4, sizes[0], sizes[1], 2.0)
    if op in PASSES_BY_OP:
        return "stream", Stream(4 * PASSES_BY_OP[op] * sizes[0] * sizes[1])
    return op, None


def _read_convolution(row: Row) -> Convolution:
    names = ("batch", "in_channels", "out_channels", "kernel", "size", "stride", "padding")
    batch, inner, outer, kernel, size, stride, padding = (int(row[name]) for name in names)
    side = (size + 2 * padding - kernel) // stride + 1
    positions, taps = batch * side * side, kernel * kernel
    moved = 4 * (batch * inner * size * size + inner * outer * taps + positions * outer)
    padded = batch * (-(-side // 4) * 4) ** 2
    return Convolution("float32", 4, 1, positions, outer, inner * taps, taps, moved, stride == 1,
                       padded)  # fmt: skip
