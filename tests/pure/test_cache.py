"""The profile cache: on disk, shared, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphplan.cachefolder import default_folder
from graphplan.cost.cache import Measurement, ProfileCache


def test_a_broken_cache_file_counts_as_empty(tmp_path: Path) -> None:
    """Rubbish on disk is neither read nor an error."""
    cache = ProfileCache("here", folder=tmp_path)
    cache.add("x", Measurement(forward_s=1.0))
    cache.save()
    assert ProfileCache("here", folder=tmp_path).find("x") == Measurement(forward_s=1.0)
    cache.path.write_text("{rubbish")
    assert ProfileCache("here", folder=tmp_path).find("x") is None


def test_two_processes_share_the_cache(tmp_path: Path) -> None:
    """What another process wrote meanwhile is kept."""
    one, two = (ProfileCache("here", folder=tmp_path) for _ in range(2))
    one.add("a", Measurement(forward_s=1.0))
    one.save()
    two.add("b", Measurement(forward_s=2.0))
    two.save()
    again = ProfileCache("here", folder=tmp_path)
    assert again.find("a") and again.find("b")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user says, in the user's cache, or under the home."""
    monkeypatch.setenv("GRAPHPLAN_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "own"
    monkeypatch.delenv("GRAPHPLAN_CACHE_DIR")
    assert default_folder() == tmp_path / "xdg" / "graphplan"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / "home" / ".cache" / "graphplan"


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user of its own, where `Path.home` raises."""

    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    monkeypatch.delenv("GRAPHPLAN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder().name.startswith("graphplan-")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    cache = ProfileCache("here", folder=tmp_path / "file")
    cache.add("x", Measurement(forward_s=1.0))
    cache.save()
    assert cache.find("x") is not None
