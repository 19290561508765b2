"""Fixtures of the tests that need several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.crew import Crew


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """One crew for all tests of a worker of pytest."""
    made = Crew(tmp_path_factory.mktemp("crew"))
    yield made
    made.dismiss()
