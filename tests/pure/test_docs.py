"""What docs name exists: links, files and public names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import graphplan
import graphplan_runtime

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "profiles/**/*.md", "examples/**/*.md")
    for page in ROOT.glob(pattern)
)
PYTHON_FILES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("graphplan", "runtime", "tests", "tools", "examples", "docs")
    for path in (ROOT / folder).rglob("*.py")
]
FOLDER_BY_PAGE = {
    "capture": "graphplan/frontend",
    "costs": "graphplan/cost",
    "learned": "graphplan/cost",
    "partition": "graphplan/partition",
    "policies": "runtime",
    "referee": "graphplan/referee",
    "runtime": "runtime",
    "schedules": "graphplan/schedule",
    "simulator": "graphplan/simulate",
    "staleness": "graphplan/staleness",
}
"""Where a page's plain names of files are."""
OUTSIDE = {"/contextlib.py", "pretrain_gpt.py", "planned.py"}
"""Files of Python itself, of Megatron and of exported folders that our sources name."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Links between files of the project exist."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def list_figures(page: Path) -> list[tuple[str, str]]:
    """Heads of tables in which most cells are figures, with the section that they stand in."""
    found = []
    for section in re.split(r"^(?=## )", page.read_text(), flags=re.M):
        for table in re.findall(r"(?:^\|.*\n){3,}", section, flags=re.M):
            head, _, *rows = table.splitlines()
            cells = [cell for row in rows for cell in row.strip("|").split("|")[1:]]
            if 2 * sum(bool(re.match(r"[ *~<-]*\d", cell)) for cell in cells) > len(cells):
                found.append((head, section))
    return found


COMMAND = re.compile(
    r"python (-m )?tools|graphplan (learn|profile|search|staleness) |pytest tests/"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_figures_can_be_made_again(page: Path) -> None:
    """The section says by which command; what cannot be made again is a dated record."""
    if page.parent.name == "results":
        assert re.search(r"20\d\d-\d\d-\d\d", page.read_text().split("\n## ")[0])
        return
    for head, section in list_figures(page):
        assert COMMAND.search(section), head


def test_tables_of_figures_are_found() -> None:
    """The README has one, a page of words none."""
    assert len(list_figures(ROOT / "README.md")) == 1
    assert not list_figures(ROOT / "docs" / "architecture.md")


def find_missing(text: str) -> list[str]:
    """Python files that a text names and that are not there.

    A path may begin anywhere: `graphplan/cost/model.py`, `cost/model.py` and `model.py` are one.
    """
    named = re.findall(r"(?<![\w./*{}-])[\w./-]+\.py\b", text)
    paths = [each.removeprefix("./").replace("graphplan_runtime/", "runtime/") for each in named]
    return [
        path
        for path in paths
        if path not in OUTSIDE
        and "NAME" not in path
        and not any(known.endswith(f"/{path}") for known in PYTHON_FILES)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_files_that_exist(page: Path) -> None:
    """Modules move; what is written about them moves along."""
    assert not find_missing(page.read_text())


@pytest.mark.parametrize("page", FOLDER_BY_PAGE)
def test_plain_names_are_in_the_folder_of_the_page(page: str) -> None:
    """`fold.py` on the page of partition is one of its modules, not one of another package."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    known = {path.name for path in (ROOT / FOLDER_BY_PAGE[page]).rglob("*.py")}
    named = {name for name in re.findall(r"`(\w+\.py)`", text) if not name.startswith("test_")}
    assert named <= known


def test_pages_name_tests_that_exist() -> None:
    """Functions and files; `test_x.py` is among the files."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = {*re.findall(r"^def (test_\w+)", tests, re.M)} | {Path(f).stem for f in PYTHON_FILES}
    for page in PAGES:
        missing = {*re.findall(r"\btest_\w+", page.read_text())} - known
        assert not missing, f"{page.name}: {missing}"


@pytest.mark.parametrize("folder", ["graphplan", "runtime", "tools"])
def test_sources_name_files_that_exist(folder: str) -> None:
    """The same for docstrings and comments."""
    missing = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / folder).rglob("*.py")
        if (found := find_missing(path.read_text()))
    }
    assert not missing


def test_a_file_that_is_not_there_is_found_missing() -> None:
    """A whole name and a part of it, in prose and in code."""
    text = "See `cost/model.py`, model.py and python tools/mutate.py; old/model.py and `gone.py`."
    assert find_missing(text) == ["old/model.py", "gone.py"]


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
        "figures",
        "load",
        "save",
        "search",
        "whatif",
    ]
    assert graphplan_runtime.__all__ == ["Pipeline"]


def test_public_names_are_there() -> None:
    """Each comes from the module that defines it, and says what it is; others do not come."""
    assert dir(graphplan) == sorted((*graphplan.__all__, "__version__"))
    for name in graphplan.__all__:
        found = getattr(graphplan, name)
        assert found.__module__ == graphplan._HOME_BY_NAME[name]
        assert found.__doc__
    assert set(graphplan._HOME_BY_NAME) == set(graphplan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        graphplan.serach  # noqa: B018
