"""Writing: all ranks write a checkpoint together, and know together when one of them cannot.

A checkpoint is written into a hidden folder, every file is flushed to the disk, the folder gets its
name in one rename, and only then `latest` is replaced: whenever a run is killed, `latest` names a
whole checkpoint. Every weight is written once, by the rank that answers for it (holdings.py). The
folder must be one that all hosts see.

A checkpoint with weights that are not finite gets its name too, but `latest` stays where it is.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from graphplan.errors import GraphplanError, InvalidOption, RunFailed
from graphplan.files import encode_noun
from graphplan.nouns.base import Noun
from graphplan_runtime.checkpoints.checkpoint import (
    MANIFEST,
    MANIFEST_SUM,
    GroupOptions,
    Manifest,
    sum_manifest,
)
from graphplan_runtime.checkpoints.lock import Lock
from graphplan_runtime.checkpoints.shelf import (
    KEEP_LAST,
    drop_old,
    find_checkpoint,
    flush_folder,
    name_checkpoint,
    next_serial,
    point_latest,
    sweep_folder,
    write_flushed,
)
from graphplan_runtime.checkpoints.tensorfile import Allowed, Seal, write_tensors
from graphplan_runtime.checkpoints.together import together
from graphplan_runtime.faults.status import Status

Explain = Callable[[OSError], GraphplanError]


class Part(Noun, frozen=True, kw_only=True):
    """What one rank contributes to the manifest."""

    seal: Seal | None
    """None when it has no tensors."""
    not_finite: str | None
    groups: tuple[GroupOptions, ...]


class SaveFolder:
    """A folder that this run saves into, tried and locked by all ranks together."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        num_ranks: int,
        warn: Callable[[str], None],
        status: Status | None = None,
    ) -> None:
        self.folder = folder
        self.status = status or Status()
        self.rank = rank
        self.num_ranks = num_ranks
        self.warn = warn
        self.lock = Lock(folder)
        with self._together(self._explain_trial):
            if rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
                self.lock.take(warn)
                sweep_folder(folder)
        try:
            with self._together(self._explain_trial):
                trial = folder / f".trial-{rank:04d}"
                write_flushed(b"graphplan\n", trial)
                trial.unlink()
        except GraphplanError:
            self.close()
            raise

    def close(self) -> None:
        """Let other runs save here."""
        if self.rank == 0:
            self.lock.release()

    def write(
        self,
        manifest: Manifest,
        tensors: Mapping[str, torch.Tensor],
        groups: tuple[GroupOptions, ...] = (),
        *,
        allowed: Mapping[str, Allowed] | None = None,
        keep_last: int = KEEP_LAST,
    ) -> Path:
        """Write this rank's tensors; returns the whole checkpoint when all ranks are done."""
        building = self.folder / f".step-{manifest.step:08d}"
        done = name_checkpoint(self.folder, manifest.step)

        def explain(error: OSError) -> GraphplanError:
            return self._explain_save(error, manifest.step)

        try:
            with self._together(explain):
                if self.rank == 0:
                    shutil.rmtree(building, ignore_errors=True)
                    building.mkdir()
            with self._together(explain):
                self._write_part(building, tensors, groups, allowed)
            with self._together(explain):
                if self.rank == 0:
                    self._finish(building, done, manifest, keep_last)
        except GraphplanError:
            if self.rank == 0:
                shutil.rmtree(building, ignore_errors=True)
            raise
        return self.folder / self._tell_name(done.name)

    def _write_part(
        self,
        building: Path,
        tensors: Mapping[str, torch.Tensor],
        groups: tuple[GroupOptions, ...],
        allowed: Mapping[str, Allowed] | None,
    ) -> None:
        part = Part(seal=None, not_finite=None, groups=groups)
        if tensors:
            written = write_tensors(building / _name_file(self.rank), tensors, allowed=allowed)
            part = Part(seal=written.seal, not_finite=written.not_finite, groups=groups)
        (building / f"part-{self.rank:04d}.json").write_bytes(msgspec.json.encode(part))

    def _finish(self, building: Path, done: Path, manifest: Manifest, keep_last: int) -> None:
        """Join the parts, give the checkpoint its name, then point to it."""
        parts: list[Part] = []
        for rank in range(self.num_ranks):
            path = building / f"part-{rank:04d}.json"
            parts.append(msgspec.json.decode(path.read_bytes(), type=Part))
            path.unlink()
        seals = {_name_file(r): part.seal for r, part in enumerate(parts) if part.seal is not None}
        odd = next((part.not_finite for part in parts if part.not_finite is not None), None)
        whole = msgspec.structs.replace(
            manifest,
            serial=next_serial(self.folder),
            finite=odd is None,
            groups=tuple(group for part in parts for group in part.groups),
            file_by_tensor={name: file for file, seal in seals.items() for name in seal.tensors},
            seal_by_file=seals,
        )
        text = encode_noun(whole)
        write_flushed(text, building / MANIFEST)
        write_flushed(sum_manifest(text), building / MANIFEST_SUM)
        flush_folder(building)
        building.rename(done)
        flush_folder(self.folder)
        if odd is None:
            point_latest(done)
        else:
            self._say_odd(done, manifest.step, odd)
        drop_old(self.folder, keep_last=keep_last)
        self.lock.refresh()

    def _say_odd(self, done: Path, step: int, odd: str) -> None:
        last = find_checkpoint(self.folder)
        kept = f"`latest` stays at {last.path.name}" if last and last.path != done else "none is"
        self.warn(
            f"After step {step}, {odd!r} is not finite: {done.name} is not one to go on from;"
            f" {kept}."
        )

    def _tell_name(self, name: str) -> str:
        """The name that rank 0 has chosen: others may see the folder late."""
        if self.num_ranks == 1:
            return name
        text = torch.zeros(64, dtype=torch.uint8)
        text[: len(name)] = torch.tensor(list(name.encode()), dtype=torch.uint8)
        with self.status.waiting():
            dist.broadcast(text, src=0)
        return bytes(text.tolist()).rstrip(b"\0").decode()

    # -- failure ---------------------------------------------------------------------------------

    def _together(self, explain: Explain) -> contextlib.AbstractContextManager[None]:
        return together(
            f"save into {self.folder}",
            rank=self.rank,
            num_ranks=self.num_ranks,
            status=self.status,
            explain=explain,
        )

    def _explain_trial(self, error: OSError) -> GraphplanError:
        return InvalidOption(
            f"Cannot save into {self.folder}: {_describe(error)}.",
            remedy="Give a folder with --save that can be made and written by every rank.",
        )

    def _explain_save(self, error: OSError, step: int) -> GraphplanError:
        last = find_checkpoint(self.folder)
        kept = f"The last whole one is {last.path}" if last else "There is no other one"
        return RunFailed(
            f"The checkpoint of step {step} cannot be written: {_describe(error)}. {kept}.",
            remedy=f"Make room, then go on with --resume {self.folder}"
            if last
            else "Make room, or save elsewhere with --save, and start again.",
        )


def _describe(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _name_file(rank: int) -> str:
    return f"rank-{rank:04d}.safetensors"
