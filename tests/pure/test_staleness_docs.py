"""docs/staleness.md prints what it says, and its tables of experiments are those of the files."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tools import make_tables
from tools.staleness_figures import draw_convergence, draw_delays, list_convergence, list_delays

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "staleness.md"


def load_rows(name: str) -> list[dict[str, Any]]:
    """The rows of an experiment."""
    rows: list[dict[str, Any]] = json.loads((DOCS / "images" / f"{name}.json").read_text())["rows"]
    return rows


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and versions are those of the page."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = next(text for language, text in blocks if language == "python")
    printed = next(text for language, text in blocks if not language)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_tables_are_those_of_the_experiments() -> None:
    """Every row that the tool prints stands on the page."""
    page = PAGE.read_text()
    for line in list_convergence(load_rows("staleness_convergence")):
        assert line in page
    for line in list_delays(load_rows("staleness_delays")):
        assert line in page


def test_the_tables_of_delays_and_rates_are_those_of_the_theory() -> None:
    """Every line, its head too, is what the tool prints."""
    page = PAGE.read_text()
    for rows in (make_tables.list_delays(), make_tables.list_rates()):
        assert "\n".join(make_tables.write_rows(rows)) in page


def test_every_result_has_ten_seeds_and_a_rate_inside_its_grid() -> None:
    """What the page calls inside is inside; a rate at an end of its grid is marked."""
    for row in load_rows("staleness_convergence") + load_rows("staleness_delays"):
        assert len(row["losses"]) == 10
        rates = sorted(map(float, row["grid"]))
        assert row["is_inside"] == (rates[0] < row["rate"] * (1 + 1e-5) < rates[-1])
        assert row["mean"] == pytest.approx(sum(row["losses"]) / 10)


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    """Both figures are valid SVG with a panel for each task and problem."""
    draw_convergence(load_rows("staleness_convergence"), tmp_path / "a.svg")
    draw_delays(load_rows("staleness_delays"), tmp_path / "b.svg")
    for name, words in (("a", ["cnn, adam", "2bw, m=4"]), ("b", ["quadratic", "logistic"])):
        root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
        text = " ".join(root.itertext())
        assert all(word in text for word in words)
