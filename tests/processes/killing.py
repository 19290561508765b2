"""Power cuts: ranks that do nothing but save are killed at random moments."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from graphplan_runtime.checkpoints.checkpoint import Manifest, read_checkpoint, read_manifest
from graphplan_runtime.checkpoints.shelf import find_checkpoint
from graphplan_runtime.checkpoints.writing import SaveFolder
from graphplan_runtime.messages.doors import find_loopback

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


def save_for_ever(place: Place, rank: int, pipe: Connection) -> None:
    """Save step after step, from the last one on; rank 0 tells how long each took."""

    def note(word: str) -> None:
        place.words.write_text(word)

    torch.set_num_threads(1)
    if place.num_ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = find_loopback()
        store = FileStore(str(place.store), place.num_ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=place.num_ranks)
    saving = SaveFolder(place.saved, rank=rank, num_ranks=place.num_ranks, warn=note)
    found = find_checkpoint(place.saved)
    step = read_manifest(found.path).step if found is not None else 0
    while True:
        step += 1
        start = time.monotonic()
        tensors = list(make_tensors(step).items())[rank :: place.num_ranks]
        saving.write(Manifest(model="m", step=step, seed=0), dict(tensors))
        if rank == 0:
            pipe.send(time.monotonic() - start)


@dataclasses.dataclass
class Place:
    """Where ranks meet, save and say something."""

    folder: Path
    num_ranks: int

    @property
    def saved(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "saved"

    @property
    def words(self) -> Path:
        """What rank 0 had to say."""
        return self.folder / "words"

    @property
    def store(self) -> Path:
        """Where they meet; a new one each time."""
        return self.folder / "store"


def kill_while_saving(
    folder: Path, *, num_kills: int, rng: random.Random, num_ranks: int = 1
) -> Tally:
    """Kill all ranks so often, and read all of the last checkpoint each time.

    After none to two whole checkpoints, at a moment of the next one, however long it takes.
    """
    context, tally, place = multiprocessing.get_context("fork"), Tally(), Place(folder, num_ranks)
    place.saved.mkdir(parents=True, exist_ok=True)
    seconds = 0.0
    for number in range(num_kills):
        ours, theirs = context.Pipe()
        ranks = [
            context.Process(target=save_for_ever, args=(place, rank, theirs), daemon=True)
            for rank in range(num_ranks)
        ]
        for rank in ranks:
            rank.start()
        for _ in range(rng.randrange(3) if number else 1):
            seconds = ours.recv()
        time.sleep(rng.random() * seconds * 1.2)
        for rank in rng.sample(ranks, num_ranks):
            rank.kill()
        for rank in ranks:
            rank.join()
        tally.torn += any(place.saved.glob(".step-*"))
        tally.taken_over += place.words.exists() and "taken over" in place.words.read_text()
        place.words.unlink(missing_ok=True)
        place.store.unlink(missing_ok=True)
        look_at(place.saved, tally)
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
