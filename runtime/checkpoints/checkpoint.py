"""Checkpoints: weights and optimizer states by parameter name, so that any plan can resume.

    folder/latest                          the name of the last whole one with finite weights
    folder/step-00000010/manifest.json     step, seed, options of the optimizer, places of tensors
    folder/step-00000010/manifest.sha256   its checksum, as `sha256sum -c` reads it
    folder/step-00000010/rank-0003.safetensors

The manifest holds a checksum of every tensor and of the header of every file, and has one itself:
there is no byte in a checkpoint whose change would not be noticed. writing.py writes checkpoints,
shelf.py knows the folder that they are in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from graphplan.errors import InvalidFile
from graphplan.files import decode_noun, read_bytes
from graphplan.nouns.base import Noun
from graphplan_runtime.checkpoints.flightnote import FlightNote
from graphplan_runtime.checkpoints.tensorfile import Seal, read_tensors

MANIFEST = "manifest.json"
MANIFEST_SUM = "manifest.sha256"
OPTIMIZER = "optimizer"
"""Prefix of the names of the optimizer's tensors; module paths have no slash."""
Option = bool | int | float | str | None | tuple[float | None, ...]
_WHOLE = "Resume from a checkpoint that graphplan wrote."


class GroupOptions(Noun, frozen=True, kw_only=True):
    """Options of the optimizer that some parameters have in common."""

    parameters: tuple[str, ...]
    options: dict[str, Option]
    optimizer: str | None = None
    """Its class; None in files of version 1."""


class Manifest(Noun, frozen=True, kw_only=True):
    """What a checkpoint holds besides tensors, and where its tensors are.

    Version 1 had no checksums and neither `serial` nor `finite`.
    """

    older_versions: ClassVar[tuple[int, ...]] = (1,)
    format: Literal["graphplan/checkpoint"] = "graphplan/checkpoint"
    version: Literal[1, 2] = 2
    model: str
    """Fingerprint of the model."""
    step: Annotated[int, msgspec.Meta(ge=0)]
    """Steps that were done."""
    seed: int
    serial: int = 0
    """In the order of writing: a resumed run may write an old step again."""
    finite: bool = True
    """Whether weights and optimizer states are numbers that training can go on from."""
    loss_scale: tuple[float, int] = (1.0, 0)
    """The factor, and the good steps since it changed."""
    groups: tuple[GroupOptions, ...] = ()
    scheduler: dict[str, Any] = {}
    flight: FlightNote | None = None
    """Batches in flight; None when there were none."""
    file_by_tensor: dict[str, str] = {}
    seal_by_file: dict[str, Seal] = {}

    def list_states(self) -> dict[str, list[str]]:
        """The optimizer's tensors by parameter: `exp_avg`, `step`, ..."""
        found: dict[str, list[str]] = {}
        for name in self.file_by_tensor:
            kind, _, rest = name.partition("/")
            key, _, parameter = rest.partition("/")
            if kind == OPTIMIZER and parameter:
                found.setdefault(parameter, []).append(key)
        return found


def sum_manifest(text: bytes) -> bytes:
    """The content of `manifest.sha256`."""
    return f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()


def read_regular(path: Path) -> bytes:
    """The bytes of a file; a pipe in its place would be waited for."""
    if path.exists() and not path.is_file():
        raise InvalidFile(f"{path} is no file.", remedy=_WHOLE)
    return read_bytes(path)


def read_manifest(checkpoint: Path, *, verify: bool = True) -> Manifest:
    """What a checkpoint says of itself; files of version 1 cannot be verified."""
    path = checkpoint / MANIFEST
    text = read_regular(path)
    is_sealed = (checkpoint / MANIFEST_SUM).is_file()
    if verify and is_sealed and read_regular(checkpoint / MANIFEST_SUM) != sum_manifest(text):
        raise InvalidFile(f"{path} has another checksum than {MANIFEST_SUM} says.", remedy=_WHOLE)
    manifest = decode_noun(text, Manifest, name=str(path))
    if verify and is_sealed != (manifest.version > 1):
        raise InvalidFile(
            f"{path} is of version {manifest.version} and has"
            f" {'a' if is_sealed else 'no'} {MANIFEST_SUM}.",
            remedy=_WHOLE,
        )
    for name, file in manifest.file_by_tensor.items():
        if Path(file).name != file:
            raise InvalidFile(
                f"{path} points to {file!r}, outside of the checkpoint.", remedy=_WHOLE
            )
        if verify and is_sealed and name not in _find_seal(manifest, file).tensors:
            raise InvalidFile(f"{path} has no checksum of {name!r}.", remedy=_WHOLE)
    return manifest


def read_checkpoint(
    checkpoint: Path,
    manifest: Manifest,
    names: set[str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    verify: bool = True,
) -> dict[str, torch.Tensor]:
    """Those of the named tensors that the checkpoint has, in the shapes that are known."""
    by_file: dict[str, list[str]] = {}
    for name in sorted(names & manifest.file_by_tensor.keys()):
        by_file.setdefault(manifest.file_by_tensor[name], []).append(name)
    found: dict[str, torch.Tensor] = {}
    for file, wanted in by_file.items():
        seal = _find_seal(manifest, file) if verify and manifest.version > 1 else None
        found |= read_tensors(checkpoint / file, wanted, shapes=shapes, seal=seal)
        missing = [name for name in wanted if name not in found]
        if missing:
            raise InvalidFile(f"{checkpoint / file} has no tensor {missing[0]!r}.", remedy=_WHOLE)
    return found


def _find_seal(manifest: Manifest, file: str) -> Seal:
    return manifest.seal_by_file.get(file, Seal(header="", tensors={}))
