"""Saving: between a pipeline and its checkpoints, on every rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from graphplan.errors import InvalidFile
from graphplan.files import encode_noun
from graphplan_runtime.agreement import require_agreement
from graphplan_runtime.checkpoints.checkpoint import Manifest, read_checkpoint, read_manifest
from graphplan_runtime.checkpoints.shelf import Found, find_older, require_checkpoint
from graphplan_runtime.checkpoints.snapshot import (
    check_resume,
    describe_scheduler,
    gather_shared,
    list_groups,
    list_state_names,
    list_tensors,
    restore_updater,
)
from graphplan_runtime.checkpoints.tensorfile import Allowed
from graphplan_runtime.checkpoints.together import together
from graphplan_runtime.faults.failures import is_consequence
from graphplan_runtime.streams.midstream import (
    PREFIX,
    describe_flight,
    restore_flight,
    sign_plan,
    store_flight,
)

if TYPE_CHECKING:
    from graphplan_runtime.pipeline import Pipeline

T = TypeVar("T")


def save_pipeline(pipeline: Pipeline, folder: Path, *, keep_last: int) -> Path:
    """Write a checkpoint; all ranks must call it."""
    if pipeline.flight is not None:
        if pipeline.flight.stream.is_even:
            pipeline.flight.settle()
        pipeline.updater.settle(pipeline.flight.stream.num_issued)
    scale = pipeline.updater.loss_scale
    manifest = Manifest(
        model=pipeline.captured.graph.fingerprint,
        step=pipeline.num_steps,
        seed=pipeline.seed,
        loss_scale=(scale.value, scale.num_good),
        scheduler=describe_scheduler(pipeline.updater),
        flight=describe_flight(pipeline),
    )
    tensors = list_tensors(pipeline.weights, pipeline.updater, rank=pipeline.rank)
    with pipeline.status.waiting():
        tensors |= gather_shared(pipeline.updater, pipeline.transport)
    tensors |= store_flight(pipeline)
    # Not before: ranks may wait for messages that others send only when they settle.
    return pipeline.prepare_save(folder).write(
        manifest,
        tensors,
        list_groups(pipeline.updater, rank=pipeline.rank),
        allowed=_list_allowed(pipeline, tensors),
        keep_last=keep_last,
    )


def _list_allowed(pipeline: Pipeline, tensors: dict[str, torch.Tensor]) -> dict[str, Allowed]:
    """Tensors that need not be finite.

    Weights that training never changes are as the user made them. What is in flight may hold
    infinities, as masks do; where the loss is scaled, gradients that are not finite are left out.
    """
    graph = pipeline.captured.graph
    changed = {graph.weight_by_name[name].name for op in graph.ops for name in op.mutates}
    changed |= pipeline.holdings.trained
    allowed: dict[str, Allowed] = {n: "anything" for n in pipeline.weights if n not in changed}
    in_flight: Allowed = "anything" if pipeline.updater.loss_scale.dynamic else "infinite"
    return allowed | {n: in_flight for n in tensors if n.startswith(f"{PREFIX}/")}


def load_pipeline(pipeline: Pipeline, folder: Path, *, verify: bool) -> None:
    """Go on from a checkpoint, made under this plan or another one; all ranks must call it."""
    found = require_checkpoint(folder)
    rank, num_ranks, status = pipeline.rank, pipeline.transport.num_ranks, pipeline.status
    with (
        together(f"read {found.path}", rank=rank, num_ranks=num_ranks, status=status),
        _pointing_back(found.path, verify=verify),
    ):
        manifest = read_manifest(found.path, verify=verify)
        check_resume(manifest, pipeline.captured.graph.fingerprint)
        tensors = _read_tensors(pipeline, found.path, manifest, verify=verify)
    with status.waiting():
        require_agreement({"checkpoint": f"{found.path.name} {encode_noun(manifest).decode()}"})
    shared = pipeline.updater.shards.values()
    hidden = {n: s for s in shared if not s.keeps_weights for n in s.names.values()}
    with _refusing_odd(found.path):
        with torch.no_grad():
            for name, weight in pipeline.weights.items():
                if name in hidden:
                    hidden[name].load(name, tensors[name])
                else:
                    weight.copy_(tensors[name])
        changed = restore_updater(pipeline.updater, manifest, tensors)
        # Before anything of the batches in flight is under way between the ranks.
        _say_words(pipeline, found, manifest, changed, verify=verify)
        pipeline.num_steps, pipeline.seed = manifest.step, manifest.seed
        pipeline.restart()
        note = manifest.flight
        if note is not None and note.plan == sign_plan(pipeline.plan):
            restore_flight(pipeline, note, _own_flight(pipeline, tensors))


def _read_tensors(
    pipeline: Pipeline, checkpoint: Path, manifest: Manifest, *, verify: bool
) -> dict[str, torch.Tensor]:
    """What this rank needs of a checkpoint."""
    names = set(pipeline.weights) | list_state_names(pipeline.updater, manifest)
    names |= _own_flight(pipeline, manifest.file_by_tensor).keys()
    missing = sorted(pipeline.weights.keys() - manifest.file_by_tensor.keys())
    if missing:
        raise InvalidFile(
            f"{checkpoint} has no weight {missing[0]!r}.",
            remedy="Resume from a checkpoint that graphplan wrote.",
        )
    shapes = {name: tuple(weight.shape) for name, weight in pipeline.weights.items()}
    return read_checkpoint(checkpoint, manifest, names, shapes=shapes, verify=verify)


def _own_flight(pipeline: Pipeline, named: Mapping[str, T]) -> dict[str, T]:
    prefix = f"{PREFIX}/{pipeline.rank}/"
    return {name: each for name, each in named.items() if name.startswith(prefix)}


def _say_words(
    pipeline: Pipeline, found: Found, manifest: Manifest, changed: list[str], *, verify: bool
) -> None:
    """Rank 0 says what the user must know of a checkpoint."""
    words = [*_list_words(pipeline, found, manifest, verify=verify)]
    told = _hear(pipeline, ", ".join(changed))
    words += [f"The options of the checkpoint are used: {told}."] if told else []
    if pipeline.rank == 0:
        for word in words:
            pipeline.warn(word)


def _list_words(
    pipeline: Pipeline, found: Found, manifest: Manifest, *, verify: bool
) -> Iterator[str]:
    if found.word is not None:
        yield found.word
    if verify and manifest.version == 1:
        yield f"{found.path} is of version 1, without checksums: it cannot be verified."
    if not manifest.finite:
        yield f"{found.path} holds weights or optimizer states that are not finite."
    if manifest.seed != pipeline.seed:
        yield f"The seed of the checkpoint is used: {manifest.seed} in place of {pipeline.seed}."


def _hear(pipeline: Pipeline, text: str) -> str:
    """What the first rank has to say that has something to say: the others say the same."""
    flags = [0.0] * pipeline.transport.num_ranks
    flags[pipeline.rank] = float(bool(text))
    with pipeline.status.waiting():
        told = pipeline.transport.sum_figures(flags)
        if not any(told):
            return ""
        return pipeline.transport.spread_text(text, source=told.index(1.0))


@contextlib.contextmanager
def _pointing_back(checkpoint: Path, *, verify: bool) -> Iterator[None]:
    """Name what else there is to go on from when a checkpoint is broken."""
    try:
        yield
    except InvalidFile as error:
        older = find_older(checkpoint)
        remedy = f"Go on from an older one with --resume {older}" if older else "Start anew"
        skip = "; --no-verify reads it without looking at checksums." if verify else "."
        raise InvalidFile(error.message, remedy=remedy + skip) from error


@contextlib.contextmanager
def _refusing_odd(checkpoint: Path) -> Iterator[None]:
    """A checkpoint may be whole and yet hold what no run has written."""
    try:
        yield
    except (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        if is_consequence(error):
            raise
        raise InvalidFile(
            f"{checkpoint} holds what this run cannot go on from:"
            f" {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}.",
            remedy="Resume from a checkpoint that graphplan wrote, with the same model file.",
        ) from error
