"""Boards: where ranks leave signs of life, failures and notes, beside the messages of the training.

Two kinds. Ranks of one machine have a folder that only their user can enter: signs of life are in
the memory of `status.py`, all else are small files that appear whole. Ranks that torchrun started
on several machines have the store of its rendezvous, which any process that reaches its port can
read and write: what comes from there is data of known types, never a program.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from pathlib import Path

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store

from graphplan.errors import BadInput
from graphplan_runtime.faults.failures import (
    Failure,
    LostPeer,
    first_cause,
    read_failures,
    write_failure,
)
from graphplan_runtime.faults.status import BEAT, Place, Status, read_status

TIMEOUT_S = 10.0
"""How long a note may let others wait."""
_FAILURE = "failure"


class Board(ABC):
    """What all ranks of a run can see."""

    can_block: bool
    """Whether a call may wait for another host."""

    @abstractmethod
    def post_failure(self, failure: Failure, *, rank: int) -> Failure:
        """Put up what a rank has met or seen; the failure that explains all that are up."""

    @abstractmethod
    def read_failure(self) -> Failure | None:
        """The failure that explains the others, if there is one."""

    @abstractmethod
    def post_place(self, rank: int, status: Status) -> None:
        """A sign of life."""

    @abstractmethod
    def read_places(self, ranks: list[int]) -> dict[int, tuple[Place, int]]:
        """The last signs of life of those ranks that have given one."""

    @abstractmethod
    def put(self, key: str, value: bytes) -> None:
        """Leave a note for others."""

    @abstractmethod
    def take(self, key: str) -> bytes:
        """Wait for the note of another rank."""


class FolderBoard(Board):
    """The board of ranks of one machine."""

    can_block = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def post_failure(self, failure: Failure, *, rank: int) -> Failure:
        write_failure(failure, self.folder, rank=rank)
        return self.read_failure() or failure

    def read_failure(self) -> Failure | None:
        return first_cause(read_failures(self.folder))

    def post_place(self, rank: int, status: Status) -> None:
        status.numbers[BEAT] += 1

    def read_places(self, ranks: list[int]) -> dict[int, tuple[Place, int]]:
        found = {rank: read_status(self.folder / f"status-{rank}") for rank in ranks}
        return {rank: each for rank, each in found.items() if each is not None and each[1]}

    def put(self, key: str, value: bytes) -> None:
        path = self._name_note(key)
        building = path.with_suffix(".new")
        building.write_bytes(value)
        building.rename(path)

    def take(self, key: str) -> bytes:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._name_note(key).read_bytes()
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise LostPeer(
                        f"The note {key!r} of another rank did not come.",
                        remedy="Another rank has ended: its message tells why.",
                    ) from None
                time.sleep(0.01)

    def _name_note(self, key: str) -> Path:
        return self.folder / f"note-{key.replace('/', '-')}"


class StoreBoard(Board):
    """A client of the run's store of its own, so that the monitor never waits for the trainer."""

    can_block = True

    def __init__(self, store: Store) -> None:
        store.set_timeout(timedelta(seconds=TIMEOUT_S))
        self._store = PrefixStore("graphplan", store)

    def post_failure(self, failure: Failure, *, rank: int) -> Failure:
        """The first failure stays; a real cause replaces a mere consequence."""
        text = msgspec.json.encode(failure).decode()
        found = self._store.compare_set(_FAILURE, "", text)
        first = msgspec.json.decode(found, type=Failure)
        if failure.is_cause and not first.is_cause:
            self._store.set(_FAILURE, text)
            return failure
        return first

    def read_failure(self) -> Failure | None:
        if not self._store.check([_FAILURE]):
            return None
        return msgspec.json.decode(self._store.get(_FAILURE), type=Failure)

    def post_place(self, rank: int, status: Status) -> None:
        status.numbers[BEAT] += 1
        self._store.set(f"place/{rank}", " ".join(map(str, status.numbers)))

    def read_places(self, ranks: list[int]) -> dict[int, tuple[Place, int]]:
        found: dict[int, tuple[Place, int]] = {}
        for rank in ranks:
            if self._store.check([f"place/{rank}"]):
                *numbers, beat = map(int, self._store.get(f"place/{rank}").split())
                found[rank] = (Place(*numbers), beat)
        return found

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # torch takes bytes too

    def take(self, key: str) -> bytes:
        return self._store.get(key)


def check_private(folder: Path) -> None:
    """Refuse a folder that others can enter: what ranks find there, they believe."""
    found = os.lstat(folder)
    if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.getuid():
        problem = "is not a folder of this user"
    elif found.st_mode & 0o077:
        problem = f"can be entered by others (mode {found.st_mode & 0o777:o})"
    else:
        return
    raise BadInput(
        f"The folder of the run, {folder}, {problem}.",
        remedy="Start ranks with `graphplan run`, which makes a private folder.",
    )
