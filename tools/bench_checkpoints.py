"""What checksums cost a checkpoint: megabytes for each second of processor time.

python -m tools.bench_checkpoints [--mb 256]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from graphplan_runtime.checkpoints.tensorfile import CHUNK_BYTES, read_tensors, write_tensors

ROUNDS = 3


def rate(num_bytes: int, run: Callable[[], object]) -> float:
    """Megabytes a second of processor time, of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return num_bytes / min(times) / 1e6


def hash_all(kind: Callable[[], object], num_bytes: int) -> None:
    """A checksum of so many bytes, a chunk at a time."""
    digest, chunk = kind(), bytes(CHUNK_BYTES)
    for _ in range(num_bytes // CHUNK_BYTES):
        digest.update(chunk)  # type: ignore[attr-defined]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mb", type=int, default=256, help="size of the tensor")
    num_bytes = parser.parse_args().mb << 20
    torch.set_num_threads(1)
    print("| | MB a second of processor time |\n|---|---:|")
    for kind in (hashlib.sha256, hashlib.blake2b):
        figure = rate(num_bytes, functools.partial(hash_all, kind, num_bytes))
        print(f"| {kind.__name__.removeprefix('openssl_')} alone | {figure:,.0f} |")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.safetensors"
        for dtype in (torch.bfloat16, torch.float32):
            tensors = {"w": torch.ones(num_bytes // dtype.itemsize, dtype=dtype)}
            figure = rate(num_bytes, functools.partial(write_tensors, path, tensors))
            print(f"| write {dtype}, looked at and with checksums | {figure:,.0f} |")
        seal = write_tensors(path, tensors).seal
        for name, given in (("not verified", None), ("verified", seal)):
            figure = rate(num_bytes, functools.partial(read_tensors, path, ["w"], seal=given))
            print(f"| read torch.float32, {name} | {figure:,.0f} |")


if __name__ == "__main__":
    main()
