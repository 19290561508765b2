"""What searches find is written down; a change of any of it shows in review."""

from __future__ import annotations

import pytest

from tools.golden import CASES, FOLDER, render_case


@pytest.mark.parametrize("name", CASES)
def test_searches_find_what_is_written_down(name: str) -> None:
    """`python -m tools.golden --update` writes the texts anew."""
    assert render_case(name) == (FOLDER / f"{name}.txt").read_text()


def test_every_golden_text_belongs_to_a_case() -> None:
    """Nothing is left behind when a case is renamed."""
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)
