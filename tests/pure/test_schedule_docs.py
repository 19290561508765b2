"""The example of docs/schedules.md prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedules.md"


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Picture, step, bound, proof and program are those of the page."""
    blocks = re.findall(r"```(python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = next(text for language, text in blocks if language)
    picture = next(text for language, text in blocks if not language)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == picture
