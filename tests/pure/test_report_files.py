"""What `show` and `schema` write: traces, pages, schemas, figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from graphplan.cli.main import run_command
from graphplan.errors import InvalidProgram, UnknownName
from graphplan.files import encode_noun, write_noun
from graphplan.nouns.base import Noun
from graphplan.nouns.plan import Plan
from graphplan.report.page import render_page
from graphplan.report.timing import time_plan
from graphplan.report.trace import render_trace
from graphplan.schema import NOUN_BY_NAME, make_schema
from tests.pure.files import make_graph_example, make_table_example
from tests.pure.plans import make_cluster, make_plan_example
from tests.pure.strategies import chain_edges


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A plan on disk."""
    path = tmp_path / "plan.json"
    write_noun(make_plan_example().plan, path)
    return path


def test_trace_has_every_span_once() -> None:
    """Each span is one event with torch's name; a device's events add up to its busy time."""
    example = make_plan_example(chain_edges(3), num_replicas=2, forward_s=1 / 97)
    trace = json.loads(render_trace(example.plan, example.timeline))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(example.timeline.spans)
    assert {event["name"] for event in slices} == {f"PP:{s.name}" for s in example.timeline.spans}
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert len(set(rows)) == len(rows)
    for device, busy_s in enumerate(example.timeline.busy_s_by_device):
        tids = [tid for tid, name in rows.items() if name == f"GPU {device}"]
        busy_us = sum(event["dur"] for event in slices if event["tid"] in tids)
        assert busy_us == pytest.approx(busy_s * 1e6, abs=0.001 * len(slices))


def test_trace_neighbours_touch_but_never_overlap() -> None:
    """Rounding to nanoseconds keeps tasks of a device apart."""
    example = make_plan_example(forward_s=0.1 / 3, backward_s=0.2 / 3, transfer_s=1e-7 / 3)
    trace = json.loads(render_trace(example.plan, example.timeline))
    ends: dict[int, int] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            assert start >= ends.get(event["tid"], 0)
            ends[event["tid"]] = start + round(event["dur"] * 1000)


def test_page_embeds_data_that_cannot_end_the_script() -> None:
    """The embedded JSON has no angle bracket, whatever the model is called; the data parse back."""
    example = make_plan_example(name="</script><!--\u2028")
    text = render_page(example.plan, example.timeline)
    inside = text.partition('id="plan-data">')[2].partition("</script>")[0]
    assert "<" not in inside
    packed = json.loads(inside)
    assert sum(len(row["start"]) for row in packed["devices"] + packed["channels"]) == len(
        example.timeline.spans
    )
    assert packed["peaks"][0]["parts"][0][0] == "fixed"
    assert text.count("<script") == 2
    assert "</script><!--" not in text


@pytest.mark.parametrize("name", list(NOUN_BY_NAME))
def test_schemas_are_valid_and_named(name: str) -> None:
    """Each schema is a schema, with an id, a title and a version."""
    schema = make_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:graphplan:{name}:{2 if name == 'plan' else 1}"
    assert schema["title"] == f"graphplan {name}"


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        ("plan", make_plan_example().plan),
        ("plan", make_plan_example(labels=False, num_replicas=2).plan),
        ("timeline", make_plan_example().timeline),
        ("graph", make_graph_example()),
        ("table", make_table_example()),
        ("cluster", make_cluster(9)),
    ],
)
def test_files_obey_their_schema(name: str, noun: Noun) -> None:
    """Files that we write are valid under the schema that we publish; strangers are not."""
    validator = jsonschema.Draft202012Validator(make_schema(name))
    tree = json.loads(encode_noun(noun))
    validator.validate(tree)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(tree | {"surprise": 1})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(tree | {"format": "graphplan/other"})


def test_show_writes_what_is_asked_for(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command writes page, trace and figure; the trace and the figure can be parsed."""
    html, trace, svg = (plan_file.with_suffix(suffix) for suffix in (".html", ".trace", ".svg"))
    arguments = ["show", str(plan_file), "--html", str(html), "--timeline", str(trace)]
    assert run_command([*arguments, "--svg", str(svg)]) == 0
    assert capsys.readouterr().out.count("written to") == 3
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert svg.read_text().startswith("<?xml")


def test_show_json_obeys_the_schema(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show --json` prints one object that the schema `figures` describes."""
    assert run_command(["show", str(plan_file), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    jsonschema.validate(figures, make_schema("figures"))
    assert figures["plan"] == str(plan_file)
    assert figures["baselines"].keys() == {"data-parallel", "linear", "sequential"}
    assert figures["step_s"] == pytest.approx(make_plan_example().timeline.makespan_s)


def test_show_prints_the_summary(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options `show` prints the summary."""
    assert run_command(["show", str(plan_file)]) == 0
    printed = capsys.readouterr().out
    assert "step time" in printed
    assert "What limits it" in printed


def test_show_explains_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a broken one and another kind of file: exit code 2 and a remedy."""
    graph = tmp_path / "graph.json"
    write_noun(make_graph_example(), graph)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for path in (graph, broken, tmp_path / "absent.json"):
        assert run_command(["show", str(path)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("Error: ")
        assert len(lines) >= 2


def test_programs_that_cannot_run_are_errors() -> None:
    """Text that is no program, and a program that deadlocks, are named."""
    plan = make_plan_example(chain_edges(2)).plan
    garbled = msgspec.structs.replace(plan, program=("0F0 what", *plan.program[1:]))
    with pytest.raises(InvalidProgram, match="'what' is not a task"):
        time_plan(garbled)
    stuck = msgspec.structs.replace(plan, program=("", plan.program[1]))
    with pytest.raises(InvalidProgram):
        time_plan(stuck)


def test_show_loads_no_torch(plan_file: Path) -> None:
    """`graphplan show` works where torch would take seconds to load."""
    code = (
        "import sys; from graphplan.cli.main import run_command;"
        f"run_command(['show', {str(plan_file)!r}]);"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_schema_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`schema plan` prints one schema, `schema` all of them; a typo gets a hint."""
    assert run_command(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(make_schema("plan")))
    assert run_command(["schema"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(NOUN_BY_NAME)
    assert run_command(["schema", "plam"]) == 2
    assert "Did you mean 'plan'?" in capsys.readouterr().err
    with pytest.raises(UnknownName):
        make_schema("nothing")


def test_round_trip_is_identity() -> None:
    """Plan -> JSON -> Plan gives the same value, and the same bytes again."""
    plan = make_plan_example(num_replicas=2).plan
    text = encode_noun(plan)
    assert msgspec.json.decode(text, type=Plan) == plan
    assert encode_noun(msgspec.json.decode(text, type=Plan)) == text


def test_the_graph_of_another_model_is_refused(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its module names would be shown for stages that they do not belong to."""
    write_noun(make_graph_example(), tmp_path / "graph.json")
    assert run_command(["show", str(plan_file), "--graph", str(tmp_path / "graph.json")]) == 2
    assert "the plan is for" in capsys.readouterr().err
