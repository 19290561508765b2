"""One headless browser for all tests of this folder; skipped with a reason when there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphplan.report.page import render_page
from tests.browser.chrome import Browser, find_browser
from tests.pure.plans import Example


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A running Chromium."""
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium or Chrome on this machine; Debian: apt-get install chromium")
    with Browser(path) as found:
        yield found


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    """Open the page of a plan in a window of a laptop."""

    def opened(example: Example, *, scheme: str = "light", width: int = 1360) -> Browser:
        path = tmp_path / "report.html"
        path.write_text(render_page(example.plan, example.timeline), encoding="utf-8")
        browser.resize(width, 900)
        browser.prefer(scheme)
        browser.open(path.as_uri())
        browser.settle()
        return browser

    return opened


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: GRAPHPLAN_PICTURES, or a folder that pytest removes."""
    folder = Path(os.environ.get("GRAPHPLAN_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
