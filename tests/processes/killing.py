"""Power cuts: a process that does nothing but save is killed at random moments."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from graphplan_runtime.checkpoints.checkpoint import Manifest, read_checkpoint, read_manifest
from graphplan_runtime.checkpoints.shelf import find_checkpoint
from graphplan_runtime.checkpoints.writing import SaveFolder

NUM_TENSORS = 4
NUM_VALUES = 20_000


@dataclasses.dataclass
class Tally:
    """What was found after each kill."""

    found: int = 0
    """Kills after which there was a checkpoint, whole and equal to the bit."""
    torn: int = 0
    """Kills that came while a checkpoint was half written."""
    fell_back: int = 0
    """Kills after which `latest` named none."""
    taken_over: int = 0
    """Locks that the next process took over with a word."""
    last_step: int = 0


def make_tensors(step: int) -> dict[str, torch.Tensor]:
    """Numbers that no other step has."""
    rng = torch.Generator().manual_seed(step)
    return {f"weight{i}": torch.randn(NUM_VALUES, generator=rng) for i in range(NUM_TENSORS)}


def save_for_ever(folder: Path, words: Path, pipe: Connection) -> None:
    """Save step after step, from the last one on; tells how long each took."""

    def note(word: str) -> None:
        words.write_text(word)

    torch.set_num_threads(1)
    saving = SaveFolder(folder, rank=0, num_ranks=1, warn=note)
    found = find_checkpoint(folder)
    step = read_manifest(found.path).step if found is not None else 0
    while True:
        step += 1
        start = time.monotonic()
        saving.write(Manifest(model="m", step=step, seed=0), make_tensors(step))
        pipe.send(time.monotonic() - start)


def kill_while_saving(folder: Path, *, num_kills: int, rng: random.Random) -> Tally:
    """Kill so often, and read all of the last checkpoint each time.

    After none to two whole checkpoints, at a moment of the next one, however long it takes.
    """
    context, tally, words = multiprocessing.get_context("fork"), Tally(), folder / "words"
    folder.mkdir(parents=True, exist_ok=True)
    seconds = 0.0
    for number in range(num_kills):
        ours, theirs = context.Pipe()
        process = context.Process(target=save_for_ever, args=(folder, words, theirs), daemon=True)
        process.start()
        for _ in range(rng.randrange(3) if number else 1):
            seconds = ours.recv()
        time.sleep(rng.random() * seconds * 1.2)
        process.kill()
        process.join()
        tally.torn += any(folder.glob(".step-*"))
        tally.taken_over += words.exists() and "taken over" in words.read_text()
        words.unlink(missing_ok=True)
        look_at(folder, tally)
    return tally


def look_at(folder: Path, tally: Tally) -> None:
    """The last checkpoint is whole, verified, and what was saved at its step."""
    found = find_checkpoint(folder)
    if found is None:
        assert tally.last_step == 0, "a checkpoint is lost"
        return
    manifest = read_manifest(found.path)
    wanted = make_tensors(manifest.step)
    tensors = read_checkpoint(found.path, manifest, set(wanted))
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)
    assert manifest.step >= tally.last_step, "a newer checkpoint is lost"
    tally.found += 1
    tally.fell_back += found.word is not None
    tally.last_step = manifest.step
