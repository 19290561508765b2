"""Draw the pictures of the docs from a plan: docs/images/plan.svg, and PNGs if a browser is there.

    graphplan search examples/mmt.py --gpus 8 -o plan.json
    python tools/make_figures.py plan.json

The PNGs are photographs of the HTML page in light and dark, taken with headless Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.errors import GraphplanError
from graphplan.files import read_noun
from graphplan.nouns.plan import Plan
from graphplan.report.page import render_page
from graphplan.report.svg import render_svg
from graphplan.report.timing import time_plan
from tests.browser.chrome import Browser, find_browser

PAGE_SIZE = (1360, 1900)
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def draw_figures(plan: Plan, folder: Path) -> list[Path]:
    """Write the figures; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    timeline = time_plan(plan)
    figure = folder / "plan.svg"
    figure.write_text(render_svg(plan, timeline), encoding="utf-8")
    path = find_browser()
    if path is None:
        return [figure]
    written = [figure]
    with tempfile.TemporaryDirectory() as temporary, Browser(path) as browser:
        page = Path(temporary) / "report.html"
        page.write_text(render_page(plan, timeline), encoding="utf-8")
        for scheme in ("light", "dark"):
            browser.resize(*PAGE_SIZE)
            browser.prefer(scheme)
            browser.open(page.as_uri())
            browser.settle()
            written.append(folder / f"page-{scheme}.png")
            browser.photograph(written[-1], whole=False)
    return written


def main() -> int:
    """Read the plan, draw, and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    try:
        written = draw_figures(read_noun(options.plan, Plan), options.folder)
    except GraphplanError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    for path in written:
        print(f"written to {path} ({path.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
