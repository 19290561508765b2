"""Board: a store that all ranks read and write, beside the messages of the training.

Built on torch's TCPStore of the run. The first failure that is put up stays.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store

from graphplan_runtime.faults.failures import Failure
from graphplan_runtime.faults.status import Place

TIMEOUT = timedelta(seconds=10)
_FAILURE = "failure"


class Board:
    """A client of its own, so that the monitor never waits for what the trainer does."""

    def __init__(self, store: Store) -> None:
        store.set_timeout(TIMEOUT)
        self._store = PrefixStore("graphplan", store)

    def post_failure(self, failure: Failure) -> Failure:
        """Put up a failure; returns the first one that anybody put up.

        A real cause replaces a mere consequence.
        """
        text = msgspec.json.encode(failure).decode()
        found = self._store.compare_set(_FAILURE, "", text)
        first = msgspec.json.decode(found, type=Failure)
        if failure.is_cause and not first.is_cause:
            self._store.set(_FAILURE, text)
            return failure
        return first

    def read_failure(self) -> Failure | None:
        """The failure that is up, if any."""
        if not self._store.check([_FAILURE]):
            return None
        return msgspec.json.decode(self._store.get(_FAILURE), type=Failure)

    def post_place(self, rank: int, place: Place, beat: int) -> None:
        """A sign of life."""
        self._store.set(f"place/{rank}", " ".join(map(str, (*place, beat))))

    def read_places(self, ranks: list[int]) -> dict[int, tuple[Place, int]]:
        """The last signs of life of those ranks that have given one."""
        found: dict[int, tuple[Place, int]] = {}
        for rank in ranks:
            if self._store.check([f"place/{rank}"]):
                *numbers, beat = map(int, self._store.get(f"place/{rank}").split())
                found[rank] = (Place(*numbers), beat)
        return found

    def put(self, key: str, value: bytes) -> None:
        """Leave something for others."""
        self._store.set(key, value)  # type: ignore[arg-type]  # torch takes bytes too

    def take(self, key: str) -> bytes:
        """Wait for what another rank leaves."""
        return self._store.get(key)
