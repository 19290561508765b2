"""Shelf: the checkpoints in a folder, which of them is the last, and which may go."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from graphplan.errors import GraphplanError, InvalidFile
from graphplan.files import UNREADABLE
from graphplan_runtime.checkpoints.checkpoint import MANIFEST, read_manifest, read_regular
from graphplan_runtime.checkpoints.tensorfile import read_header

LATEST = "latest"
KEEP_LAST = 2
"""Checkpoints that stay when a new one is whole."""
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_LEFT_OVER = (".step-*", ".dropped-*", ".trial-*", f".{LATEST}.*")


class Found(NamedTuple):
    """A checkpoint, and what must be said of how it was found."""

    path: Path
    word: str | None = None


class _Facts(msgspec.Struct, frozen=True):
    """The fields of a manifest by which checkpoints are ordered."""

    step: int
    serial: int = 0
    finite: bool = True


def name_checkpoint(folder: Path, step: int) -> Path:
    """A name that is free: a checkpoint is never replaced in place, it could be the last one."""
    name, number = f"step-{step:08d}", 0
    while os.path.lexists(folder / (f"{name}.{number}" if number else name)):
        number += 1
    return folder / (f"{name}.{number}" if number else name)


def list_checkpoints(folder: Path) -> list[Path]:
    """Those whose manifest can be read, the newest first."""
    found = []
    for path in folder.glob("step-*"):
        named = _NAME.fullmatch(path.name)
        if named is None or path.is_symlink():
            continue
        with contextlib.suppress(*UNREADABLE, GraphplanError):
            facts = _read_facts(path)
            found.append(((facts.serial, facts.step, int(named[2] or 0)), path))
    return [path for _, path in sorted(found, reverse=True)]


def _read_facts(checkpoint: Path) -> _Facts:
    return msgspec.json.decode(read_regular(checkpoint / MANIFEST), type=_Facts)


def next_serial(folder: Path) -> int:
    """The number of the next checkpoint in the order of writing."""
    return 1 + max((_read_facts(path).serial for path in list_checkpoints(folder)), default=0)


def is_whole(checkpoint: Path) -> bool:
    """Whether manifest and files are there and fit together; their tensors are not read."""
    try:
        manifest = read_manifest(checkpoint)
        for file in set(manifest.file_by_tensor.values()):
            seal = manifest.seal_by_file[file] if manifest.version > 1 else None
            read_header(checkpoint / file, seal=seal)
    except (GraphplanError, KeyError):
        return False
    return True


def find_older(checkpoint: Path) -> Path | None:
    """The newest whole and finite checkpoint before a broken one."""
    others = list_checkpoints(checkpoint.parent)
    if checkpoint in others:
        others = others[others.index(checkpoint) + 1 :]
    return next((path for path in others if path != checkpoint and _is_good(path)), None)


def _is_good(checkpoint: Path) -> bool:
    return is_whole(checkpoint) and _read_facts(checkpoint).finite


def find_checkpoint(folder: Path) -> Found | None:
    """The last whole checkpoint of a folder, or the folder itself if it is one.

    When `latest` names none, the newest whole one, preferably one with finite weights; with a word.
    What `latest` names is taken whether it can be verified or not: to go on from older weights
    without being told to would be a lie.
    """
    if (folder / MANIFEST).is_file():
        return Found(folder)
    named, why = _read_latest(folder)
    if named is not None:
        return Found(named)
    whole = [path for path in list_checkpoints(folder) if is_whole(path)]
    if not whole:
        return None
    best = next((path for path in whole if _read_facts(path).finite), whole[0])
    return Found(best, f"{folder / LATEST} {why}; going on from {best.name}.")


def _read_latest(folder: Path) -> tuple[Path | None, str]:
    """What `latest` names, else why it names nothing."""
    if not (folder / LATEST).is_file():
        return None, "does not exist" if not (folder / LATEST).exists() else "is no file"
    try:
        with (folder / LATEST).open("rb") as file:
            text = file.read(256)
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    name = text.decode("ascii", errors="replace").strip()
    if not _NAME.fullmatch(name):
        return None, f"names {name[:40]!r}, which is no checkpoint of this folder"
    path = folder / name
    if path.is_symlink():
        return None, f"names {name}, which is a link to somewhere else"
    if not (path / MANIFEST).is_file():
        return None, f"names {name}, which is not there"
    return path, ""


def point_latest(checkpoint: Path) -> None:
    """Let `latest` name a checkpoint, now and after a power cut."""
    beside = checkpoint.with_name(f".{LATEST}.new")
    write_flushed(f"{checkpoint.name}\n".encode(), beside)
    beside.replace(checkpoint.with_name(LATEST))
    flush_folder(checkpoint.parent)


def drop_old(folder: Path, *, keep_last: int) -> None:
    """Take away all but the newest, the last finite one and what `latest` names."""
    paths = list_checkpoints(folder)
    named, _ = _read_latest(folder)
    finite = next((path for path in paths if _read_facts(path).finite), None)
    for path in paths[keep_last:]:
        if path not in (named, finite):
            # It must not be seen half-way.
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f".dropped-{path.name}"))
            shutil.rmtree(path.with_name(f".dropped-{path.name}"), ignore_errors=True)


def sweep_folder(folder: Path) -> None:
    """Take away what runs left that were killed while they saved; only with the lock."""
    for pattern in _LEFT_OVER:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def write_flushed(text: bytes, path: Path) -> None:
    """Write a new file and wait until it is on the disk; never through a link to another place."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_checkpoint(folder: Path) -> Found:
    """The last whole checkpoint of a folder, or an error."""
    found = find_checkpoint(folder)
    if found is None:
        raise InvalidFile(
            f"There is no checkpoint in {folder}.",
            remedy="Give the folder that a run with --save wrote.",
        )
    return found
