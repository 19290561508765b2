"""The HTML page in a real browser: it draws, answers to mouse and keyboard, and stays quick."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from graphplan.nouns.plan import StageLabel
from graphplan.report.page import render_page
from tests.browser.chrome import Browser
from tests.pure.plans import Example, make_plan_example
from tests.pure.strategies import branch_edges, chain_edges

OpenPage = Callable[..., Browser]

COUNT_COLOURS = """(canvas => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Map();
  for (let i = 0; i < pixels.length; i += 4) {
    if (pixels[i + 3] < 255) continue;
    const key = `#${[0, 1, 2].map(c => pixels[i + c].toString(16).padStart(2, '0')).join('')}`;
    seen.set(key, (seen.get(key) || 0) + 1);
  }
  return Object.fromEntries(seen);
})"""


def locate_task(page: Browser, name: str) -> tuple[float, float]:
    """Window coordinates of the middle of a task, after scrolling to the timeline."""
    page.run("document.getElementById('timeline-section').scrollIntoView()")
    page.settle()
    page.run("new Promise(done => setTimeout(done, 300))")
    x, y = page.run(
        f"""(() => {{
          const {{ timeline, view }} = window.graphplan;
          const box = timeline.canvas.getBoundingClientRect();
          for (const [r, row] of timeline.rows.entries()) {{
            for (let i = 0; i < row.length; i += 1) {{
              if (row.nameOf(i) !== '{name}') continue;
              const time = (row.start[i] + row.end[i]) / 2;
              const x = GUTTER + (time - view.start) / (view.end - view.start) * timeline.width;
              return [box.left + x, box.top + AXIS + (r + 0.4) * timeline.rowHeight];
            }}
          }}
          return [null, null];
        }})()"""
    )
    assert x is not None, f"{name} is not in the timeline"
    return float(x), float(y)


def read_tooltip(page: Browser) -> str | None:
    """Text of the tooltip, None when it is hidden."""
    text: str | None = page.run(
        "(t => t.hidden ? null : t.innerText)(document.getElementById('tooltip'))"
    )
    return text


def read_view(page: Browser) -> tuple[float, float]:
    """Start and end of what the timeline shows."""
    start, end = page.run("[graphplan.view.start, graphplan.view.end]")
    return float(start), float(end)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_draws_in_both_themes(open_page: OpenPage, pictures: Path, scheme: str) -> None:
    """Tasks appear in their colours, on the theme's background, without a word in the console."""
    page = open_page(make_plan_example(branch_edges(4, 2)), scheme=scheme)
    page.run("document.getElementById('timeline-section').scrollIntoView()")
    page.settle()
    colours = page.run(f"{COUNT_COLOURS}(graphplan.timeline.canvas)")
    assert colours.get("#2f6fe0", 0) > 1000, "forwards"
    assert colours.get("#0b8074", 0) > 1000, "backwards"
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(244, 246, 249)", "dark": "rgb(14, 19, 25)"}[scheme]
    assert len(page.run(f"Object.keys({COUNT_COLOURS}(graphplan.memory.canvas))")) > 2
    page.run("scrollTo(0, 0)")
    page.resize(1360, int(page.run("document.documentElement.scrollHeight")))
    page.settle()
    page.photograph(pictures / f"page-{scheme}.png")
    assert page.complaints() == []


def test_toggle_overrides_the_system_theme(open_page: OpenPage) -> None:
    """The button goes from auto to light to dark and back, whatever the system prefers."""
    page = open_page(make_plan_example(), scheme="dark")
    seen = []
    for _ in range(3):
        page.run("document.getElementById('theme').click()")
        label = page.run("document.getElementById('theme').textContent")
        seen.append((label, page.run("getComputedStyle(document.body).backgroundColor")))
    light, dark = "rgb(244, 246, 249)", "rgb(14, 19, 25)"
    assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: auto", dark)]


def test_hover_tells_task_times_and_bytes(open_page: OpenPage) -> None:
    """Pointing at a task shows what it is, when it runs, and the bytes that it keeps."""
    page = open_page(make_plan_example())
    assert read_tooltip(page) is None
    page.point(*locate_task(page, "4F0"))
    page.settle()
    text = read_tooltip(page) or ""
    assert "4F0: forward of micro-batch 0, stage 4" in text
    assert "10.000 ms" in text
    assert "21.61 ms to 31.61 ms" in text, text
    assert "5.00 GB" in text
    page.point(5, 5)
    page.settle()
    assert read_tooltip(page) is None


def test_hover_tells_transfers(open_page: OpenPage) -> None:
    """Transfers are rows of their own with sender, receiver and bytes."""
    page = open_page(make_plan_example(transfer_s=0.004))
    assert page.run("document.getElementById('show-channels').checked")
    page.point(*locate_task(page, "0>1F0"))
    page.settle()
    text = read_tooltip(page) or ""
    assert "activations of micro-batch 0 from stage 0 to stage 1" in text
    assert "4.000 ms" in text
    assert "1,000 B" in text or "1000 B" in text


def test_wheel_zooms_where_the_pointer_is(open_page: OpenPage) -> None:
    """Wheel and buttons zoom; the time under the pointer stays; Fit shows everything again."""
    page = open_page(make_plan_example())
    x, y = locate_task(page, "4F0")
    whole = read_view(page)
    page.point(x, y, event="mouseWheel", deltaX=0, deltaY=-120)
    page.settle()
    start, end = read_view(page)
    assert end - start < (whole[1] - whole[0]) * 0.9
    again = locate_task(page, "4F0")
    assert abs(again[0] - x) < 3
    page.run("document.getElementById('zoom-in').click()")
    assert read_view(page)[1] - read_view(page)[0] < end - start
    page.run("document.getElementById('zoom-fit').click()")
    assert read_view(page) == whole
    assert page.complaints() == []


def test_drag_moves_and_double_click_zooms(open_page: OpenPage) -> None:
    """Dragging moves the shown stretch; a double click brings a task to a fifth of the width."""
    page = open_page(make_plan_example())
    x, y = locate_task(page, "4B3")
    for count in (1, 2):
        page.point(x, y, event="mousePressed", button="left", clickCount=count)
        page.point(x, y, event="mouseReleased", button="left", clickCount=count)
    page.settle()
    start, end = read_view(page)
    assert end - start == pytest.approx(5 * 0.021, rel=1e-6)
    page.point(x, y, event="mousePressed", button="left", buttons=1)
    page.point(x - 200, y, button="left", buttons=1)
    page.point(x - 200, y, event="mouseReleased", button="left")
    page.settle()
    assert read_view(page)[0] > start


def test_keyboard_walks_and_announces(open_page: OpenPage) -> None:
    """Arrow keys walk through tasks and a screen reader hears them; + and 0 zoom."""
    page = open_page(make_plan_example())
    page.run("graphplan.timeline.canvas.focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    said = page.run("document.getElementById('announce').textContent")
    assert said.startswith("0F1: forward of micro-batch 1, stage 0.")
    page.press("ArrowDown")
    said = page.run("document.getElementById('announce').textContent")
    assert said.startswith("1F0: forward of micro-batch 0, stage 1.")
    whole = read_view(page)
    page.press("+")
    assert read_view(page) != whole
    page.press("0")
    assert read_view(page) == whole


def test_choosing_a_stage_marks_it_everywhere(open_page: OpenPage) -> None:
    """A click on a stage of the graph marks its row in the table, and the table sorts."""
    page = open_page(make_plan_example())
    page.run(
        "document.querySelector('#stage-graph [data-stage=\"2\"]')"
        ".dispatchEvent(new Event('click'))"
    )
    assert page.run("document.querySelector('#stage-table tr.chosen').dataset.stage") == "2"
    assert page.run("graphplan.view.stage") == 2
    page.run("document.querySelectorAll('#stage-table th button')[9].click()")
    order = page.run(
        "[...document.querySelectorAll('#stage-table tbody tr')].map(r => r.dataset.stage)"
    )
    assert order == ["4", "1", "3", "0", "2"]


def test_critical_path_and_memory_scale(open_page: OpenPage) -> None:
    """Only the critical path keeps its full colours; memory can be scaled to the peak."""
    page = open_page(make_plan_example())
    page.settle()
    before = page.run(f"{COUNT_COLOURS}(graphplan.timeline.canvas)")
    low = page.run(f"{COUNT_COLOURS}(graphplan.memory.canvas)")
    page.run("document.getElementById('show-critical').click()")
    page.run(
        "(m => { m.value = 'peak'; m.dispatchEvent(new Event('change')) })"
        "(document.getElementById('memory-scale'))"
    )
    page.settle()
    after = page.run(f"{COUNT_COLOURS}(graphplan.timeline.canvas)")
    assert 0 < after["#0b8074"] < before["#0b8074"] / 2
    assert page.run(f"{COUNT_COLOURS}(graphplan.memory.canvas)") != low


def test_names_cannot_inject(open_page: OpenPage) -> None:
    """Names from a model file are text, wherever they appear."""
    evil = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>{{data}}"
    plan = make_plan_example(name=evil).plan
    label = StageLabel(modules=(evil,), num_ops=1, num_parameters=1, param_bytes=4)
    plan = msgspec.structs.replace(plan, labels=(label,) * len(plan.stages.stages))
    page = open_page(Example(plan, make_plan_example().timeline))
    page.point(*locate_task(page, "4F0"))
    page.settle()
    assert page.run("window.pwned === undefined")
    assert page.run("document.querySelector('h1').textContent") == evil
    assert evil in (read_tooltip(page) or "").replace("\n", "")
    assert page.complaints() == []


def test_sixty_four_by_sixty_four(open_page: OpenPage, pictures: Path) -> None:
    """64 devices x 64 micro-batches answer to zoom and hover; the work of a frame is reported."""
    page = open_page(make_plan_example(chain_edges(64), num_micro_batches=64, transfer_s=0.0002))
    x, y = locate_task(page, "20B10")
    page.run("graphplan.timeline.timings.length = 0")
    for step in range(40):
        page.point(x, y, event="mouseWheel", deltaX=0, deltaY=-40 if step < 20 else 40)
        page.point(x + step, y)
        page.settle()
    page.photograph(pictures / "page-64x64.png", whole=False)
    times = sorted(page.run("graphplan.timeline.timings"))
    assert len(times) >= 40
    figures = {"median_frame_ms": times[len(times) // 2], "worst_frame_ms": times[-1]}
    (pictures / "frames.json").write_text(json.dumps(figures))
    assert page.complaints() == []


def test_narrow_window_does_not_overflow(open_page: OpenPage) -> None:
    """On a phone the page scrolls down only; wide parts scroll inside their panels."""
    page = open_page(make_plan_example(branch_edges(4, 2)), width=420)
    widths = page.run("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]


def test_page_is_one_file() -> None:
    """The page names no other address than the SVG namespace."""
    example = make_plan_example()
    text = render_page(example.plan, example.timeline)
    assert "http://www.w3.org/2000/svg" in text
    rest = text.replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in rest
    assert "https:" not in rest
    assert "{{" not in rest
