"""The README's first command prints what the README shows, and its lines of Python run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from graphplan.cli.main import run_command

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def read_block(after: str) -> str:
    """The first code block without a language after the block that holds a text."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    holder = next(index for index, (_, text) in enumerate(blocks) if after in text)
    found: str = next(text for language, text in blocks[holder + 1 :] if not language)
    return found


def list_python(page: str) -> list[str]:
    """The Python blocks of a page, in their order."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def list_labels(text: str) -> list[str]:
    """The words that begin the report's lines, without figures and pictures of the plan."""
    labels = re.findall(
        r"^(step time|throughput|bubble|over [a-z ]+?(?=  )|[A-Z][a-z]+\b)", text, re.M
    )
    heads = re.findall(r"^stage .*$", text, re.M)
    return [*dict.fromkeys(labels), *(" ".join(head.split()) for head in heads)]


def test_the_first_command_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report begins with the same parts; times of the search differ between machines."""
    command = re.search(r"graphplan (search [^\n`]*)", README)
    assert command is not None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert run_command(command[1].split()) == 0
    said = capsys.readouterr().out
    shown = read_block("graphplan search")
    labels = list_labels(shown)
    assert labels[-1] == "Stages"
    assert list_labels(said)[: len(labels)] == labels
    assert said.splitlines()[0] == shown.splitlines()[0]
    assert (tmp_path / "plan.json").exists()


def test_the_library_example_plans_the_model_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model file of docs/own_model.md, then the README's lines, with which it ends, too."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    file, lines = list_python((ROOT / "docs" / "own_model.md").read_text())
    assert list_python(README) == [lines]
    for block in (file, lines):
        exec(block, names)
    assert names["gp"].load("plan.json") == names["plan"]
    assert capsys.readouterr().out
