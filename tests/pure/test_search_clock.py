"""The clock of a search hands out what is left of its limit."""

from __future__ import annotations

import pytest

from graphplan.planner.search import Clock


def test_parts_get_what_is_left_until_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that comes late gets less, one that comes early no more than its most."""
    now_s = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    clock = Clock(10.0)
    now_s = 102.0
    assert clock.share_until(0.7) == pytest.approx(0.5)
    assert clock.seconds_until(0.7, most=0.1) == pytest.approx(1.0)
    now_s = 108.0
    assert clock.seconds_until(0.7) == 0.0
    assert clock.share_until(0.7, least=0.25) == 0.25
    assert clock.seconds_until(1.0) == pytest.approx(2.0)


def test_no_time_at_all() -> None:
    """A limit of zero leaves nothing, and divides by nothing."""
    assert Clock(0.0).seconds_until(1.0) == 0.0
