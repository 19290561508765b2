"""Reading and writing JSON files: strict, versioned, deterministic, atomic; no code runs."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from graphplan.errors import InvalidFile
from graphplan.jsontext import find_control, find_flaw, has_long_integer
from graphplan.nouns.base import Noun

T = TypeVar("T", bound=Noun)

MAX_FILE_BYTES = 64 << 20
"""A plan of 1,024 devices and 100,000 tasks has 5 MB; text of this size stays below 1 GB in memory,
whatever it says."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
"""What decoding raises for texts that are no JSON, no UTF-8, too deep or too large."""


def format_of(noun: type[Noun]) -> str:
    """The `format` value of a noun that has files."""
    return str(_default_of(noun, "format"))


def _default_of(noun: type[Noun], field: str) -> object:
    """Read off the type: msgspec's own list of fields would evaluate their annotations."""
    return noun.__struct_defaults__[noun.__struct_fields__.index(field)]


def encode_noun(noun: Noun) -> bytes:
    """Deterministic JSON: same value, same bytes."""
    return msgspec.json.format(msgspec.json.encode(noun, order="deterministic"), indent=1) + b"\n"


def write_noun(noun: Noun, path: Path | str) -> None:
    """Write a noun, compressed when the name ends in .gz; it appears whole or not at all."""
    text = encode_noun(noun)
    if str(path).endswith(".gz"):
        text = gzip.compress(text, mtime=0)
    write_bytes(text, Path(path))


def write_bytes(text: bytes, path: Path) -> None:
    """Write a file through a temporary neighbour, so that nothing is lost half-way."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            os.chmod(temporary, 0o644)  # noqa: PTH101
            os.replace(temporary, path)  # noqa: PTH105
        except BaseException:
            os.unlink(temporary)  # noqa: PTH108
            raise
    except OSError as error:
        raise InvalidFile(
            f"Cannot write {path}: {error.strerror or error}.",
            remedy="Choose a folder that exists and is writable with -o.",
        ) from error


def read_noun(path: Path | str, noun: type[T]) -> T:
    """Read a file that holds a noun of this type."""
    return decode_noun(read_text(path), noun, name=str(path))


def read_text(path: Path | str) -> bytes:
    """The JSON text of a file, unpacked when its name ends in .gz."""
    content = read_bytes(Path(path))
    return _unpack(content, name=str(path)) if str(path).endswith(".gz") else content


def _unpack(content: bytes, *, name: str) -> bytes:
    """Uncompressed bytes; a small file that would unpack into a huge one is refused."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            text = packed.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidFile(
            f"{name} is not a whole gzip file: {error}.",
            remedy="Write the file again, or unpack it by hand and give the JSON.",
        ) from error
    if len(text) > MAX_FILE_BYTES:
        raise InvalidFile(
            f"{name} unpacks into more than {MAX_FILE_BYTES:,} bytes.",
            remedy="Check that this is the right file.",
        )
    return text


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of a bearable size."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)  # A device has no size and no end.
    except OSError as error:
        raise InvalidFile(
            f"Cannot read {path}: {error.strerror or error}.",
            remedy="Check the path; relative paths start at the current folder.",
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidFile(
            f"{path} has more than {MAX_FILE_BYTES:,} bytes, which no file of ours has.",
            remedy="Check that this is the right file.",
        )
    return content


def decode_noun(text: bytes, noun: type[T], *, name: str) -> T:
    """Parse and validate; a wrong format, version or field is an error that names the place."""
    wanted = format_of(noun)
    header = read_header(text, name=name)
    if header.format != wanted:
        raise InvalidFile(
            f"{name} is a {header.format!r} file, not {wanted!r}.",
            remedy=f"Give a file that `graphplan` wrote as {wanted!r}.",
        )
    versions = (*noun.older_versions, _default_of(noun, "version"))
    if header.version not in versions:
        raise InvalidFile(
            f"{name} has version {header.version}; this graphplan reads version"
            f" {' and '.join(map(str, versions))}.",
            remedy="Write the file again with this graphplan, or install the one that wrote it.",
        )
    try:
        current = text
        if header.version in noun.older_versions:
            fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            current = msgspec.json.encode(noun.upgrade(fields))
        found = msgspec.json.decode(current, type=noun)
    except (*UNREADABLE, ValueError) as error:  # Nouns that are made of older ones raise it bare.
        raise InvalidFile(
            f"{name} is not a valid {wanted!r} file: {error}.",
            remedy="`graphplan schema` prints what the file must look like.",
        ) from error
    flaw = find_control(text)
    # Files as we write them have no key twice; only others need the slow look.
    if flaw is None and (has_long_integer(text) or encode_noun(found) != text):
        flaw = find_flaw(text)
    if flaw is not None:
        raise InvalidFile(
            f"{name} is not a valid {wanted!r} file: {flaw}.",
            remedy="Correct it by hand, or write the file again with graphplan.",
        )
    return found


class Header(msgspec.Struct):
    """The fields that every file has."""

    format: str
    version: int


def read_header(text: bytes, *, name: str) -> Header:
    """Format and version of a file, before anything else is read."""
    try:
        return msgspec.json.decode(text, type=Header)
    except UNREADABLE as error:
        raise InvalidFile(
            f"{name} is not a graphplan JSON file: {error}.",
            remedy='A graphplan file is a JSON object that starts with "format" and "version".',
        ) from error
