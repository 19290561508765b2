"""Boards and monitors: what ranks of one machine see of each other, and when that is a hang."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from graphplan_runtime.faults import board as boards
from graphplan_runtime.faults import monitor as monitors
from graphplan_runtime.faults.board import FolderBoard
from graphplan_runtime.faults.failures import Failure, Kind, LostPeer
from graphplan_runtime.faults.monitor import Monitor
from graphplan_runtime.faults.status import Phase, Status


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Still:
    """A pulse that has felt nothing for a while."""

    quiet_s = 0.0

    def feel(self) -> float:
        return self.quiet_s


class Team:
    """The monitors of some ranks that look when they are told to."""

    def __init__(self, folder: Path, clock: Clock, *, num_ranks: int, hang_s: float) -> None:
        self.clock = clock
        self.board = FolderBoard(folder)
        self.pulses = [Still() for _ in range(num_ranks)]
        self.statuses = [Status(folder / f"status-{rank}") for rank in range(num_ranks)]
        self.monitors = [
            Monitor(
                self.board,
                status,
                rank=rank,
                lines=[()] * num_ranks,
                hang_s=hang_s,
                end=lambda failure: None,
                pulse=pulse,  # type: ignore[arg-type]
            )
            for rank, (status, pulse) in enumerate(zip(self.statuses, self.pulses, strict=True))
        ]

    def look(self, seconds: float = 0.0) -> list[str | None]:
        """Let time pass and everybody look, once a second; what each of them sees at the end."""
        for _ in range(int(seconds)):
            self.clock.now_s += 1
            self.stand(0)
        found = self.stand(seconds - int(seconds))
        return [f"{each.rank} ({each.place}): {each.message}" if each else None for each in found]

    def stand(self, seconds: float) -> list[Failure | None]:
        """Let time pass while nobody looks, and then everybody."""
        self.clock.now_s += seconds
        for rank, status in enumerate(self.statuses):
            self.board.post_place(rank, status)
        return [each._look() for each in self.monitors]


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Two ranks with a hang timeout of 10 s."""
    clock = Clock()
    monkeypatch.setattr(monitors, "time", clock)
    return Team(tmp_path, clock, num_ranks=2, hang_s=10)


def test_idle_phases_end(team: Team) -> None:
    """Nothing works for rank 1 in build(): after six timeouts it hangs, not before."""
    for status in team.statuses:
        status.enter(Phase.BUILDING)
    team.look()
    team.pulses[1].quiet_s = 59
    assert team.look(59) == [None, None]
    team.pulses[1].quiet_s = 61
    assert team.look(2) == [None, "1 (building): no progress for 61 s"]


def test_busy_phases_end_too(team: Team) -> None:
    """A loop that never ends in data() is stopped after 60 timeouts; a reference never is."""
    team.statuses[0].enter(Phase.REFERENCE)
    team.statuses[1].enter(Phase.READING_DATA)
    team.look()
    assert team.look(599) == [None, None]
    assert team.look(2) == [None, "1 (reading data): no progress for 601 s"]


def test_who_waits_for_others_does_not_hang(team: Team) -> None:
    """Rank 0 waits for the checkpoint of rank 1, however long that takes."""
    for status in team.statuses:
        status.enter(Phase.SAVING)
    with team.statuses[0].waiting():
        team.pulses[0].quiet_s = 1e6
        assert team.look() == team.look(1000) == [None, None]
    team.look()
    assert team.look(61) == ["0 (saving): no progress for 61 s", None]


def test_all_who_wait_for_each_other_hang(team: Team) -> None:
    """Only when nobody has moved meanwhile: a rank that has just arrived ends the others' wait."""
    for status in team.statuses:
        status.enter(Phase.SAVING)
    with team.statuses[0].waiting():
        team.look()
        assert team.look(500) == [None, None]
        with team.statuses[1].waiting():
            assert team.look(1) == [None, None]
            assert team.look(50) == [None, None]
            places = "(rank 0: saving; rank 1: saving)"
            told = f"0 (saving): all ranks wait for each other for 62 s {places}"
            assert team.look(12) == [told, None]


def test_a_job_that_was_suspended_goes_on(team: Team) -> None:
    """All processes were stopped for an hour, in the middle of a task: nobody has hung."""
    for status in team.statuses:
        status.enter(Phase.TRAINING, step=1)
    assert team.look(9) == [None, None]
    for pulse in team.pulses:
        pulse.quiet_s = 3600
    assert team.stand(3600) == [None, None]
    assert team.look(2) == [f"{rank} (training): no progress for 10 s" for rank in (0, 1)]


def fail(rank: int, kind: Kind, time_s: float) -> Failure:
    return Failure(rank=rank, kind=kind, place="", message="", remedy="", time_s=time_s)


def test_a_cause_replaces_a_consequence(tmp_path: Path) -> None:
    """Whoever comes first, the board shows what explains the others."""
    board = FolderBoard(tmp_path)
    assert board.read_failure() is None
    assert board.post_failure(fail(0, "consequence", 1), rank=0).rank == 0
    assert board.post_failure(fail(2, "signal", 3), rank=2).rank == 2
    assert board.post_failure(fail(1, "error", 2), rank=1).rank == 1
    assert board.post_failure(fail(1, "consequence", 0), rank=1).kind == "error"
    assert board.read_failure() == fail(1, "error", 2)
    (tmp_path / "failure-3.json").write_bytes(b"{torn")
    assert board.read_failure() == fail(1, "error", 2)


def test_notes_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note comes whole; one that never comes is a lost peer."""
    board = FolderBoard(tmp_path)
    later = threading.Timer(0.2, board.put, ("report/1", b"all of it"))
    later.start()
    assert board.take("report/1") == b"all of it"
    monkeypatch.setattr(boards, "TIMEOUT_S", 0.05)
    with pytest.raises(LostPeer, match="'report/2' of another rank did not come"):
        board.take("report/2")
