"""Settings of all tests: the same examples, terminal and cache on every machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("graphplan", deadline=None, derandomize=True)
settings.load_profile("graphplan")

WISHES = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "GRAPHPLAN_DEBUG", "GRAPHPLAN_RUN_FOLDER")
"""What a shell or a CI server may say about output, and what a run of ours leaves to its ranks."""


@pytest.fixture(scope="session", autouse=True)
def same_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reports are 80 columns wide and plain, and nobody's cache is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("GRAPHPLAN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for name in WISHES:
            patch.delenv(name, raising=False)
        yield
