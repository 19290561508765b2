"""Tensor files: named tensors in one file, in the safetensors format.

Eight bytes with the length of a JSON header, the header (dtype, shape and place of every tensor),
then the tensors' bytes, one after another without a gap. Nothing in it can execute; other tools
read it. Everything that a file claims is checked against its size before a tensor is made.

A `Seal` holds the checksums of a file: one of all bytes up to the data and one of every tensor, so
that no byte of the file is without one, and a rank reads and verifies its own tensors only.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Literal

import msgspec
import torch

from graphplan.errors import InvalidFile
from graphplan.files import MAX_FILE_BYTES, UNREADABLE
from graphplan.jsontext import find_flaw
from graphplan.nouns.base import Noun
from graphplan_runtime.messages.plain import make_plain

METADATA = "__metadata__"
"""Key of the header that is no tensor: texts that the writer wants to leave."""
CHUNK_BYTES = 1 << 20
"""Written, added to the checksum and looked at while it lies in the processor's cache."""
MOST_DIMS = 64
Allowed = Literal["infinite", "anything"]
"""What a tensor may hold besides finite numbers: infinities, or also NaN."""

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
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize

    @property
    def is_possible(self) -> bool:
        """Whether torch can make such a tensor: it counts strides of empty tensors too."""
        if (
            self.dtype not in _DTYPES
            or len(self.shape) > MOST_DIMS
            or min(self.shape, default=0) < 0
        ):
            return False
        return math.prod(max(size, 1) for size in self.shape) < 1 << 59


class Seal(Noun, frozen=True, kw_only=True):
    """SHA-256 of all that a file holds."""

    header: str
    """Of all bytes up to the data."""
    tensors: dict[str, str]


class Written(msgspec.Struct, frozen=True):
    """What is known of a file when it is on the disk."""

    seal: Seal
    not_finite: str | None
    """The first tensor that should be finite and is not."""


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], *, allowed: Mapping[str, Allowed] | None = None
) -> Written:
    """Write a file and wait until it is on the disk; one pass over the tensors.

    All of them should be finite, those of `allowed` apart.
    """
    header: dict[str, object] = {METADATA: {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = Entry(_NAMES[tensor.dtype], tuple(tensor.shape), (offset, end))
        offset = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    text = struct.pack("<Q", len(text)) + text
    sums: dict[str, str] = {}
    odd: str | None = None
    with path.open("wb") as file:
        file.write(text)
        for name, tensor in tensors.items():
            digest, is_sound = hashlib.sha256(), True
            for chunk in _list_chunks(tensor):
                content = chunk.view(torch.uint8).numpy().data
                file.write(content)
                digest.update(content)
                is_sound = is_sound and _is_sound(chunk, (allowed or {}).get(name))
            sums[name] = digest.hexdigest()
            odd = name if odd is None and not is_sound else odd
        file.flush()
        os.fsync(file.fileno())
    return Written(Seal(header=hashlib.sha256(text).hexdigest(), tensors=sums), odd)


def _list_chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    plain = make_plain(tensor.detach().cpu()).reshape(-1)
    size = CHUNK_BYTES // plain.element_size()
    yield from (plain[at : at + size] for at in range(0, plain.numel(), size))


def _is_sound(chunk: torch.Tensor, allowed: Allowed | None) -> bool:
    if chunk.is_complex():
        chunk = torch.view_as_real(chunk)
    if not chunk.is_floating_point() or allowed == "anything":
        return True
    # A NaN is both the least and the largest. For 16 bits there is no fast way on a CPU.
    ends = [float(end) for end in torch.aminmax(chunk.float() if chunk.itemsize < 4 else chunk)]
    return not any(map(math.isnan, ends)) if allowed else all(map(math.isfinite, ends))


def read_header(path: Path, *, seal: Seal | None = None) -> tuple[dict[str, Entry], int]:
    """The entries of a file, and where its data begin."""
    try:
        with _open(path) as file:
            return _read_header(file, path, seal)
    except OSError as error:
        raise _broken(path, error.strerror or error) from error


def _open(path: Path) -> FileIO:
    if path.exists() and not path.is_file():  # A pipe would wait for a writer.
        raise _broken(path, "it is no file")
    return path.open("rb", buffering=0)


def _read_header(file: FileIO, path: Path, seal: Seal | None) -> tuple[dict[str, Entry], int]:
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if length > min(size - 8, MAX_FILE_BYTES):
        raise _broken(path, "its header is longer than the file")
    text = file.read(length)
    if seal is not None and hashlib.sha256(prefix + text).hexdigest() != seal.header:
        raise _broken(path, "the checksum of its header is another one")
    try:
        header = _decode_header(text)
    except (*UNREADABLE, ValueError) as error:
        raise _broken(path, error) from error
    place = 0
    for name, entry in sorted(header.items(), key=lambda each: each[1].data_offsets):
        start, end = entry.data_offsets
        if not entry.is_possible:
            raise _broken(path, f"{name!r} has dtype {entry.dtype!r} and shape {entry.shape}")
        if start != place or end - start != entry.num_bytes:
            raise _broken(path, f"{name!r} lies at {start}..{end} in place of {place}..")
        place = end
    if place != size - 8 - length:
        raise _broken(path, f"its tensors have {place} bytes, its data {size - 8 - length}")
    return header, 8 + length


def _decode_header(text: bytes) -> dict[str, Entry]:
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    notes = raw.pop(METADATA, None)
    if notes is not None:
        msgspec.json.decode(notes, type=dict[str, str])
    flaw = find_flaw(text)
    if flaw is not None:
        raise ValueError(flaw)
    return {name: msgspec.json.decode(each, type=Entry) for name, each in raw.items()}


def read_tensors(
    path: Path,
    names: Collection[str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seal: Seal | None = None,
) -> dict[str, torch.Tensor]:
    """Those of the named tensors that a file has, verified when there is a seal.

    One that has another shape than it must have is not even read.
    """
    found: dict[str, torch.Tensor] = {}
    try:
        with _open(path) as file:
            header, base = _read_header(file, path, seal)
            for name in names:
                if name in header:
                    shape = (shapes or {}).get(name, header[name].shape)
                    if header[name].shape != shape:
                        why = f"{name!r} has shape {header[name].shape}, not {shape}"
                        raise _broken(path, why)
                    wanted = seal.tensors.get(name, "") if seal is not None else None
                    found[name] = _read_entry(file, path, name, header[name], base, wanted)
    except OSError as error:
        raise _broken(path, error.strerror or error) from error
    return found


def _read_entry(
    file: FileIO, path: Path, name: str, entry: Entry, base: int, wanted: str | None
) -> torch.Tensor:
    try:
        tensor = torch.empty(entry.shape, dtype=_DTYPES[entry.dtype])
    except RuntimeError as error:
        raise _broken(path, f"{name!r} of {entry.num_bytes:,} bytes finds no memory") from error
    digest = hashlib.sha256()
    file.seek(base + entry.data_offsets[0])
    for chunk in _list_chunks(tensor):
        content = chunk.view(torch.uint8).numpy().data
        while len(content):
            count = file.readinto(content)
            if not count:
                raise _broken(path, f"it ends within {name!r}")
            if wanted is not None:
                digest.update(content[:count])
            if tensor.dtype is torch.bool and max(content[:count]) > 1:
                raise _broken(path, f"{name!r} holds bytes that are neither true nor false")
            content = content[count:]
    if wanted is not None and digest.hexdigest() != wanted:
        raise _broken(path, f"the checksum of {name!r} is another one")
    return tensor


def _broken(path: Path, why: object) -> InvalidFile:
    return InvalidFile(
        f"{path} is not a whole tensor file: {why}.",
        remedy="Resume from an older checkpoint of the same folder.",
    )
