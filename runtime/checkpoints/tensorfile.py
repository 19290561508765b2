"""Tensor files: named tensors in one file, in the safetensors format.

Eight bytes with the length of a JSON header, the header (dtype, shape and place of every tensor),
then the tensors' bytes. Nothing in it can execute; other tools read it. Everything that a file
claims is checked against its size before a tensor is made.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import torch

from graphplan.errors import InvalidFile
from graphplan_runtime.messages.plain import make_plain

MAX_HEADER_BYTES = 256 << 20

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        """What shape and dtype need."""
        count = 1
        for size in self.shape:
            count *= size
        return count * _DTYPES[self.dtype].itemsize


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a file and wait until it is on the disk."""
    header: dict[str, Entry] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = Entry(_NAMES[tensor.dtype], tuple(tensor.shape), (offset, end))
        offset = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            plain = make_plain(tensor.detach().cpu()).reshape(-1)
            file.write(plain.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def read_header(path: Path) -> tuple[dict[str, Entry], int]:
    """The entries of a file, and where its data begin."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = msgspec.json.decode(file.read(length), type=dict[str, Entry])
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise _broken(path, error) from error
    for name, entry in header.items():
        start, end = entry.data_offsets
        if entry.dtype not in _DTYPES or min(entry.shape, default=0) < 0:
            raise _broken(path, f"{name!r} has dtype {entry.dtype!r} and shape {entry.shape}")
        if not 0 <= start <= end <= size - 8 - length or end - start != entry.num_bytes:
            raise _broken(path, f"{name!r} lies at {start}..{end} of {size - 8 - length} bytes")
    return header, 8 + length


def read_tensors(path: Path, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Those of the named tensors that a file has; only their pages are read."""
    header, base = read_header(path)
    found: dict[str, torch.Tensor] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        for name in names:
            if name in header:
                found[name] = _read_entry(memory, header[name], base)
    return found


def _read_entry(memory: mmap.mmap, entry: Entry, base: int) -> torch.Tensor:
    dtype = _DTYPES[entry.dtype]
    start, end = (base + offset for offset in entry.data_offsets)
    if start == end:
        return torch.empty(entry.shape, dtype=dtype)
    with memoryview(memory) as view:
        return torch.frombuffer(bytearray(view[start:end]), dtype=dtype).reshape(entry.shape)


def _broken(path: Path, why: object) -> InvalidFile:
    return InvalidFile(
        f"{path} is not a whole tensor file: {why}.",
        remedy="Resume from an older checkpoint of the same folder.",
    )
