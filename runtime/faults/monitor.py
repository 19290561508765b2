"""Monitor: a thread that ends this process when its own rank or another one has failed.

Every half second it gives a sign of life, and looks for a failure on the board. It puts one up
itself when its own rank makes no progress; rank 0 also watches the signs of life of all ranks, and
whether all of them wait for each other; the others watch rank 0's. The main thread may hang in a
wait or in a kernel, so that the process is ended without asking it.

Every phase of a run has an end. A rank either waits for others (in a phase that ranks go through
together, or where it says so), and then only all of them together can hang; or it works alone, and
then it hangs when nothing has worked for it for a while (its pulse), or when the phase takes longer
than it may:

    phase           idle for            in all
    training        1 hang timeout      a task: 1, 6 in the first step, 10 times the slowest so far
    starting        6                   180
    building        6                   180
    loading         6                   180
    reading data    6                   60
    saving          6                   180
    reference       6                   no limit: it computes as long as the user's model takes

A model file may wait for a network where a task may not, and may hold Python's lock for seconds so
that no other thread of its rank gives a sign of life, hence 6: a minute by default.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from graphplan.nouns.task import Instruction
from graphplan_runtime.faults.board import Board
from graphplan_runtime.faults.failures import Failure, Kind
from graphplan_runtime.faults.pulse import Pulse
from graphplan_runtime.faults.status import Phase, Place, Status

PERIOD_S = 0.5
FIRST_STEP_FACTOR = 6
"""The first step may take longer: kernels are chosen, memory is fetched for the first time."""
SLOWEST_FACTOR = 10
"""A task may take so many times longer than the slowest so far before it counts as hanging."""
IDLE_FACTOR = 6
"""Outside of tasks: hang timeouts for which nothing may work for a rank."""
LONGEST_FACTOR = {
    Phase.STARTING: 180,
    Phase.BUILDING: 180,
    Phase.LOADING: 180,
    Phase.READING_DATA: 60,
    Phase.SAVING: 180,
    Phase.REFERENCE: math.inf,
}
"""Outside of tasks: hang timeouts that a phase may take in all."""

STOPPED_S = 2.0
"""A thread that wants to run every half second and did not for so long was stopped, not idle."""

End = Callable[[Failure], None]


class Awake:
    """A clock for one thread that stands still while its process does.

    A job that is suspended for an hour and goes on has not hung for an hour.
    """

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self._lost_s = 0.0

    def read(self) -> float:
        """Seconds; to be called in every round of the thread."""
        now_s = time.monotonic()
        if now_s - self._last_s > STOPPED_S:
            self._lost_s += now_s - self._last_s - PERIOD_S
        self._last_s = now_s
        return now_s - self._lost_s


class Monitor:
    """`hang_s` is how long a task may go on without progress, at least.

    `pulse` tells what is slow from what hangs, where it is work of the host: all of a rank on a
    CPU, and what a rank on an accelerator does outside of tasks. None when waits are emulated.
    """

    def __init__(
        self,
        board: Board,
        status: Status,
        *,
        rank: int,
        lines: Sequence[Sequence[Instruction]],
        hang_s: float,
        end: End,
        pulse: Pulse | None = None,
        runs_on_host: bool = True,
        parent: int | None = None,
    ) -> None:
        self.board = board
        self.status = status
        self.rank = rank
        self.lines = lines
        self.hang_s = hang_s
        self.end = end
        self.pulse = pulse
        self.runs_on_host = runs_on_host
        self._seen: dict[int, tuple[object, float]] = {}
        """By rank: its last sign of life and when it changed."""
        self._moved: dict[int, tuple[Place, float]] = {}
        """By rank: its place and when it came there."""
        self._clock = Awake()
        self._now = self._since = self._clock.read()
        self._place = status.read()
        self._slowest_s = 0.0
        self._main = threading.main_thread().ident
        self._stopped = threading.Event()
        self._num_rounds = 0
        self._parent = parent or os.getppid()
        self._threads = [
            threading.Thread(target=self._watch, name="monitor", daemon=True),
            threading.Thread(target=self._watch_watcher, name="monitor-watch", daemon=True),
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The run has ended well."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=2)

    # -- the thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            try:
                self.board.post_place(self.rank, self.status)
                failure = self.board.read_failure()
                if failure is None and (seen := self._look()) is not None:
                    failure = self.board.post_failure(seen, rank=self.rank)
            except Exception as error:
                if self._stopped.is_set():
                    return
                failure = self._lose_store(f"{type(error).__name__}: {error}".split("\n")[0])
            if failure is not None:
                self.end(failure)
                return
            self._num_rounds += 1

    def _watch_watcher(self) -> None:
        """Calls of the store can block for long when a link is cut."""
        clock, seen = Awake(), (-1, 0.0)
        while not self._stopped.wait(PERIOD_S):
            if os.getppid() != self._parent:
                end_process(1)  # The launcher was killed: nobody is left to report to.
            now = clock.read()
            if seen[0] != self._num_rounds:
                seen = (self._num_rounds, now)
            if self.board.can_block and now - seen[1] > self.hang_s:
                self.end(self._lose_store("no answer"))
                return

    def _look(self) -> Failure | None:
        """What is wrong, if anything."""
        self._now = self._clock.read()
        own = self._look_at_self()
        if own is not None:
            return own
        others = [r for r in range(len(self.lines)) if r != self.rank] if self.rank == 0 else [0]
        places = self.board.read_places([r for r in others if r != self.rank])
        return self._look_for_silence(places) or self._look_for_deadlock(places)

    def _look_at_self(self) -> Failure | None:
        now, place = self._now, self.status.read()
        waited = now - self._since
        quiet = min(waited, self.pulse.feel()) if self.pulse is not None else 0.0
        if place != self._place:
            if self._place.phase == Phase.TRAINING and not self._place.is_waiting:
                self._slowest_s = max(self._slowest_s, waited)
            self._place, self._since = place, now
            return None
        if not works_alone(place):
            return None
        if quiet < self._limit_idle(place) and waited < self._limit(place):
            return None
        return self._fail(
            self.rank,
            place,
            f"no progress for {waited:.0f} s",
            "Its stack follows; what is really this slow needs a larger --hang-timeout.",
            trace=self._stack(),
        )

    def _limit_idle(self, place: Place) -> float:
        """For how long nothing may work for a rank that does not wait for others."""
        if place.phase != Phase.TRAINING:
            return IDLE_FACTOR * self.hang_s
        return self.hang_s if self.runs_on_host else math.inf

    def _limit(self, place: Place) -> float:
        """For how long a rank may be at one place, whatever it does there."""
        if place.phase != Phase.TRAINING:
            return self.hang_s * LONGEST_FACTOR[Phase(place.phase)]
        factor = FIRST_STEP_FACTOR if place.step == 0 else 1
        return max(self.hang_s * factor, SLOWEST_FACTOR * self._slowest_s)

    def _look_for_silence(self, places: dict[int, tuple[Place, int]]) -> Failure | None:
        now = self._now
        for rank, (place, beat) in places.items():
            if self._seen.get(rank, (None, 0.0))[0] != (place, beat):
                self._seen[rank] = ((place, beat), now)
            silent = now - self._seen[rank][1]
            limit_s = self.hang_s if place.phase == Phase.TRAINING else IDLE_FACTOR * self.hang_s
            if silent > limit_s and place.phase not in (Phase.ENDING, Phase.DONE):
                return self._fail(
                    rank,
                    place,
                    f"no sign of life for {silent:.0f} s: the process is stopped, or its host or"
                    " network is gone",
                    "Look at the host of this rank.",
                )
        return None

    def _look_for_deadlock(self, places: dict[int, tuple[Place, int]]) -> Failure | None:
        """Rank 0 sees whether everybody waits, and nobody has moved meanwhile."""
        now = self._now
        everybody = {self.rank: self._place, **{r: place for r, (place, _) in places.items()}}
        for rank, place in everybody.items():
            if self._moved.get(rank, (None, 0.0))[0] != place:
                self._moved[rank] = (place, now)
        waited = now - max(moved for _, moved in self._moved.values())
        if self.rank != 0 or waited < self._limit_together() + 2 * PERIOD_S:
            return None
        if len(everybody) < len(self.lines) or any(map(works_alone, everybody.values())):
            return None
        text = "; ".join(f"rank {r}: {p.describe(self.lines[r])}" for r, p in everybody.items())
        return self._fail(
            self.rank,
            self._place,
            f"all ranks wait for each other for {waited:.0f} s ({text})",
            "Check the plan with `graphplan check`, and the network between the hosts.",
        )

    def _limit_together(self) -> float:
        """For how long all ranks may wait for each other."""
        if self._place.phase == Phase.TRAINING:
            return self._limit(self._place)
        return IDLE_FACTOR * self.hang_s

    def _lose_store(self, why: str) -> Failure:
        return self._fail(
            self.rank,
            self.status.read(),
            f"lost contact with the store of the run, on the host of rank 0 ({why})",
            "Look at the host of rank 0 and at the network between the hosts.",
            kind="cut",
        )

    def _fail(
        self,
        rank: int,
        place: Place,
        message: str,
        remedy: str,
        *,
        trace: str = "",
        kind: Kind = "hang",
    ) -> Failure:
        return Failure(
            rank=rank,
            kind=kind,
            place=place.describe(self.lines[rank]),
            message=message,
            remedy=remedy,
            trace=trace,
            time_s=time.monotonic(),
        )

    def _stack(self) -> str:
        """Where the main thread is."""
        frame = sys._current_frames().get(self._main or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""


def works_alone(place: Place) -> bool:
    """Whether a rank does something for which it needs no other one."""
    return place.phase in (Phase.TRAINING, *LONGEST_FACTOR) and not place.is_waiting


def end_process(code: int) -> None:
    """End at once; the main thread may be in a wait that never returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
