"""render_page: one self-contained HTML file: no network, no framework, nothing a name can inject.

The template, its style and its scripts lie in template/ and are inlined here. A content policy in
the page allows exactly these scripts and this style, by their hashes, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re

from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.timeline import Timeline
from graphplan.report.graphsvg import draw_graph
from graphplan.report.limits import find_limits
from graphplan.report.markup import draw_element, write_text
from graphplan.report.pagedata import collect_page_data, escape_json
from graphplan.report.pageparts import (
    write_cards,
    write_comparison,
    write_findings,
    write_provenance,
    write_split,
    write_table,
    write_title,
)
from graphplan.report.spans import split_spans
from graphplan.report.stagerows import describe_stages
from graphplan.report.usage import measure_usage

SCRIPTS = ("format.js", "view.js", "rows.js", "timeline.js", "memory.js", "stages.js", "page.js")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def render_page(plan: Plan, timeline: Timeline, *, graph: OpGraph | None = None) -> str:
    """The page of a plan; `graph` adds module names and parameters to a plan without labels."""
    rows = split_spans(timeline)
    stages = describe_stages(plan, timeline, rows, graph=graph)
    usage = measure_usage(timeline, rows)
    drawing = draw_graph(plan, stages)
    style = _read("page.css")
    script = "\n".join(map(_read, SCRIPTS))
    slots = {
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " base-uri 'none'; form-action 'none'",
        "title": write_text(f"{plan.model.name}: graphplan"),
        "style": style,
        "header": write_title(plan),
        "cards": write_cards(plan, stages),
        "comparison": write_comparison(plan),
        "split": write_split(usage),
        "findings": write_findings(find_limits(plan, usage, stages)),
        "graph": draw_element(
            "svg",
            drawing.elements,
            id="stage-graph",
            viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
            width=drawing.width,
            height=drawing.height,
            role="group",
            aria_label="Stage graph",
        ),
        "table": write_table(stages),
        "provenance": write_provenance(plan),
        "data": escape_json(collect_page_data(plan, timeline, rows, stages)),
        "script": script,
    }
    return _SLOT.sub(lambda match: slots[match[1]], _read("page.html"))


def _read(name: str) -> str:
    folder = importlib.resources.files("graphplan.report").joinpath("template")
    return folder.joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """The name that a content policy gives to an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
