"""The examples in docs/ run as they are, and the public names are the ones that docs name."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import graphplan

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))
    assert list(tmp_path.iterdir()) or path.stem == "what_if"


def test_public_names() -> None:
    """These names are promised; adding or removing one is a decision."""
    assert sorted(graphplan.__all__) == [
        "Cluster",
        "GraphplanError",
        "OpGraph",
        "Plan",
        "ProfileTable",
        "SearchOptions",
        "Timeline",
        "capture",
        "check",
        "cluster",
        "explain",
        "load",
        "save",
        "search",
        "whatif",
    ]
    for name in graphplan.__all__:
        assert getattr(graphplan, name) is not None
    assert callable(graphplan.capture)
