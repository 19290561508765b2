"""Fuzz the files: every mutant is valid or a clear error, never a traceback, hang or 1 GB.

    python tools/fuzz_files.py --count 20000 --seed 0

A mutant that loads is used as a user would: plans are judged by the referee, simulated and shown in
every form, timelines are split into rows, clusters are numbered. Anything but a GraphplanError is a
crash; one that computes for ten seconds is a hang; memory is limited to 1 GB over the
start. Exit code 1 when anything was found.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.cost.hardware import CLUSTER_EXAMPLE, parse_cluster
from graphplan.errors import GraphplanError
from graphplan.files import decode_noun, encode_noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.timeline import Timeline
from graphplan.referee import check_plan
from graphplan.report.dot import render_dot
from graphplan.report.page import render_page
from graphplan.report.spans import split_spans
from graphplan.report.summary import render_text
from graphplan.report.svg import render_svg
from graphplan.report.timing import time_plan
from graphplan.report.trace import render_trace
from tests.pure.files import make_graph_example, make_table_example
from tests.pure.plans import make_cluster, make_plan_example
from tests.pure.strategies import branch_edges, chain_edges
from tools.mutate import mutate

HANG_S = 10.0
MEMORY_BYTES = 1 << 30


class Target(NamedTuple):
    """A kind of file: texts to mutate, and what a user does with one."""

    kind: str
    seeds: tuple[bytes, ...]
    use: Callable[[bytes], None]


class Hang(Exception):
    """A mutant took too long."""


def list_targets() -> tuple[Target, ...]:
    """Plans get the largest share of the mutants, because most is done with them."""
    plans = (
        make_plan_example(),
        make_plan_example(chain_edges(3), num_replicas=2, num_micro_batches=4, labels=False),
        make_plan_example(branch_edges(2, 1), num_micro_batches=2, ops_per_stage=2),
    )
    small = make_plan_example(chain_edges(2), num_micro_batches=2).timeline
    return (
        Target("plan", tuple(encode_noun(each.plan) for each in plans), use_plan),
        Target("plan", tuple(encode_noun(each.plan) for each in plans[1:]), use_plan),
        Target("graph", (encode_noun(make_graph_example()),), use_graph),
        Target("table", (encode_noun(make_table_example()),), use_table),
        Target("timeline", (encode_noun(small), encode_noun(plans[1].timeline)), use_timeline),
        Target("cluster", (encode_noun(make_cluster(9)),), use_cluster),
        Target("cluster-toml", (CLUSTER_EXAMPLE.encode(),), use_toml),
    )


def use_plan(text: bytes) -> None:
    """Judge the plan, simulate it, and show it in every form."""
    plan = decode_noun(text, Plan, name="plan.json")
    check_plan(plan)
    timeline = time_plan(plan)
    render_text(plan, timeline)
    render_svg(plan, timeline)
    render_page(plan, timeline)
    render_trace(plan, timeline)
    render_dot(plan)


def use_graph(text: bytes) -> None:
    """Fingerprint and edges of a graph."""
    graph = decode_noun(text, OpGraph, name="graph.json")
    assert graph.fingerprint
    assert len(graph.edges) >= 0


def use_table(text: bytes) -> None:
    """Rows of a table."""
    assert decode_noun(text, ProfileTable, name="table.json").row_by_op is not None


def use_timeline(text: bytes) -> None:
    """Rows and shares of a timeline."""
    timeline = decode_noun(text, Timeline, name="timeline.json")
    split_spans(timeline)
    assert timeline.bubble == timeline.bubble or timeline.bubble != timeline.bubble


def use_cluster(text: bytes) -> None:
    """Devices of a cluster."""
    assert decode_noun(text, Cluster, name="cluster.json").devices


def use_toml(text: bytes) -> None:
    """Devices of a cluster file as users write it."""
    assert parse_cluster(text.decode(errors="replace"), name="cluster.toml").devices


@contextlib.contextmanager
def watch(seconds: float) -> Iterator[None]:
    """Raise Hang in the block after so many seconds of computing; a busy machine does not count."""

    def ring(*_: object) -> None:
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judge(target: Target, text: bytes) -> tuple[str, str]:
    """(valid | refused | crash | hang, detail)."""
    try:
        with watch(HANG_S):
            target.use(text)
    except GraphplanError as error:
        is_clear = bool(error.message.strip() and error.remedy.strip())
        return ("refused", type(error).__name__) if is_clear else ("crash", "empty message")
    except Hang as error:
        return "hang", str(error)
    except Exception:
        return "crash", traceback.format_exc(limit=-3)
    return "valid", ""


def fuzz(
    count: int, seed: int, *, report: Callable[[str, int, bytes, str], None]
) -> dict[str, collections.Counter[str]]:
    """Outcomes by kind of file; `report` gets every crash and hang."""
    targets = list_targets()
    outcomes: dict[str, collections.Counter[str]] = {}
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        target = targets[number % len(targets)]
        text = mutate(rng, rng.choice(target.seeds))
        outcome, detail = judge(target, text)
        outcomes.setdefault(target.kind, collections.Counter())[outcome] += 1
        if outcome in ("crash", "hang"):
            report(f"{target.kind} {outcome}", number, text, detail)
    return outcomes


def limit_memory() -> None:
    """At most 1 GB more than now: beyond it Python raises MemoryError, which counts as a crash."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, resource.RLIM_INFINITY))


def main() -> int:
    """Run, print the counts, keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for mutants that crash or hang")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []

    def report(kind: str, number: int, text: bytes, detail: str) -> None:
        found.append({"kind": kind, "number": number, "detail": detail})
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{number}-{kind.replace(' ', '-')}").write_bytes(text)

    limit_memory()
    start = time.perf_counter()
    outcomes = fuzz(options.count, options.seed, report=report)
    summary = {
        "count": options.count,
        "seed": options.seed,
        "seconds": round(time.perf_counter() - start, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "found": found,
    }
    print(json.dumps(summary) if options.json else format_summary(summary))
    return 1 if found else 0


def format_summary(summary: dict[str, Any]) -> str:
    """A table of outcomes, and the different crashes once each."""
    lines = [f"{'file':<14}{'valid':>8}{'refused':>9}{'crash':>7}{'hang':>6}"]
    for kind, counts in summary["outcomes"].items():
        cells = [counts.get(each, 0) for each in ("valid", "refused", "crash", "hang")]
        lines.append(f"{kind:<14}{cells[0]:>8,}{cells[1]:>9,}{cells[2]:>7,}{cells[3]:>6,}")
    lines.append(
        f"{summary['count']:,} mutants, seed {summary['seed']}, {summary['seconds']} s,"
        f" peak memory {summary['peak_mb']} MB"
    )
    different = {each["detail"]: each for each in summary["found"]}
    lines += [
        f"\n{each['kind']}, mutant {each['number']}:\n{each['detail']}"
        for each in different.values()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
