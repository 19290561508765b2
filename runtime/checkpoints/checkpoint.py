"""Checkpoints: weights and optimizer states by parameter name, so that any plan can resume.

    folder/latest                        the name of the last whole checkpoint
    folder/step-00000010/manifest.json   step, seed, options of the optimizer, where each tensor is
    folder/step-00000010/rank-0003.safetensors

A checkpoint is written into a hidden folder, every file is flushed to the disk, the folder gets its
name in one rename, and only then `latest` is replaced: whenever a run is killed, `latest` names a
whole checkpoint. Every weight is written once, by the rank that answers for it (holdings.py). The
folder must be one that all hosts see.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist

from graphplan.errors import InvalidFile
from graphplan.files import encode_noun, read_noun, write_bytes
from graphplan.nouns.base import Noun
from graphplan_runtime.checkpoints.flightnote import FlightNote
from graphplan_runtime.checkpoints.tensorfile import read_tensors, write_tensors

KEPT = 2
"""Checkpoints that stay when a new one is whole."""
LATEST = "latest"
MANIFEST = "manifest.json"
OPTIMIZER = "optimizer"
"""Prefix of the names of the optimizer's tensors; module paths have no slash."""
Option = bool | int | float | str | None | tuple[float, ...]


class GroupOptions(Noun, frozen=True, kw_only=True):
    """Options of the optimizer that some parameters have in common."""

    parameters: tuple[str, ...]
    options: dict[str, Option]


class Manifest(Noun, frozen=True, kw_only=True):
    """What a checkpoint holds besides tensors, and where its tensors are."""

    format: Literal["graphplan/checkpoint"] = "graphplan/checkpoint"
    version: Literal[1] = 1
    model: str
    """Fingerprint of the model."""
    step: int
    """Steps that were done."""
    seed: int
    loss_scale: tuple[float, int] = (1.0, 0)
    """The factor, and the good steps since it changed."""
    groups: tuple[GroupOptions, ...] = ()
    scheduler: dict[str, Any] = {}
    flight: FlightNote | None = None
    """Batches in flight; None when there were none."""
    file_by_tensor: dict[str, str] = {}

    def list_states(self) -> dict[str, list[str]]:
        """The optimizer's tensors by parameter: `exp_avg`, `step`, ..."""
        found: dict[str, list[str]] = {}
        for name in self.file_by_tensor:
            kind, _, rest = name.partition("/")
            key, _, parameter = rest.partition("/")
            if kind == OPTIMIZER and parameter:
                found.setdefault(parameter, []).append(key)
        return found


class Part(Noun, frozen=True, kw_only=True):
    """What one rank contributes to the manifest."""

    tensors: tuple[str, ...]
    groups: tuple[GroupOptions, ...]


def write_checkpoint(
    folder: Path,
    manifest: Manifest,
    tensors: Mapping[str, torch.Tensor],
    groups: tuple[GroupOptions, ...],
    *,
    rank: int,
    num_ranks: int,
) -> Path:
    """Write this rank's tensors; returns the whole checkpoint when all ranks are done."""
    name = f"step-{manifest.step:08d}"
    building = folder / f".{name}"
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
    _meet(num_ranks)
    if tensors:
        write_tensors(building / f"rank-{rank:04d}.safetensors", tensors)
    part = Part(tensors=tuple(tensors), groups=groups)
    (building / f"part-{rank:04d}.json").write_bytes(msgspec.json.encode(part))
    _meet(num_ranks)
    if rank == 0:
        _finish(building, _choose_name(folder, name), manifest, num_ranks)
    _meet(num_ranks)
    done = find_checkpoint(folder)
    assert done is not None
    return done


def _choose_name(folder: Path, name: str) -> Path:
    """A name that is free: a checkpoint is never replaced in place, it could be the last one."""
    number = 0
    while (folder / (f"{name}.{number}" if number else name)).exists():
        number += 1
    return folder / (f"{name}.{number}" if number else name)


def _meet(num_ranks: int) -> None:
    if num_ranks > 1:
        dist.barrier()


def _finish(building: Path, done: Path, manifest: Manifest, num_ranks: int) -> None:
    """Join the parts, give the checkpoint its name, then point to it."""
    file_by_tensor: dict[str, str] = {}
    groups: list[GroupOptions] = []
    for rank in range(num_ranks):
        path = building / f"part-{rank:04d}.json"
        part = msgspec.json.decode(path.read_bytes(), type=Part)
        file_by_tensor |= dict.fromkeys(part.tensors, f"rank-{rank:04d}.safetensors")
        groups += part.groups
        path.unlink()
    whole = msgspec.structs.replace(manifest, file_by_tensor=file_by_tensor, groups=tuple(groups))
    write_bytes(encode_noun(whole), building / MANIFEST)
    _flush(building)
    building.rename(done)
    _flush(done.parent)
    write_bytes(f"{done.name}\n".encode(), done.parent / LATEST)
    _flush(done.parent)
    _drop_old(done.parent, keep=done.name)


def _flush(folder: Path) -> None:
    """Make renames in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _drop_old(folder: Path, *, keep: str) -> None:
    older = sorted(p for p in folder.glob("step-*") if p.is_dir() and p.name != keep)
    for path in older[: max(0, len(older) - (KEPT - 1))]:
        shutil.rmtree(path, ignore_errors=True)


def find_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint of a folder, or the folder itself if it is one."""
    if (folder / MANIFEST).is_file():
        return folder
    try:
        name = (folder / LATEST).read_text().strip()
    except OSError:
        return None
    return folder / name if name and (folder / name / MANIFEST).is_file() else None


def read_manifest(checkpoint: Path) -> Manifest:
    """What a checkpoint says of itself."""
    return read_noun(checkpoint / MANIFEST, Manifest)


def read_checkpoint(
    checkpoint: Path, manifest: Manifest, names: set[str]
) -> dict[str, torch.Tensor]:
    """Those of the named tensors that the checkpoint has."""
    by_file: dict[str, list[str]] = {}
    for name in sorted(names & manifest.file_by_tensor.keys()):
        by_file.setdefault(manifest.file_by_tensor[name], []).append(name)
    found: dict[str, torch.Tensor] = {}
    for file, wanted in by_file.items():
        if Path(file).name != file:
            raise InvalidFile(
                f"{checkpoint / MANIFEST} points to {file!r}, outside of the checkpoint.",
                remedy="Resume from a checkpoint that graphplan wrote.",
            )
        found |= read_tensors(checkpoint / file, wanted)
    return found
