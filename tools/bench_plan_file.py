"""How long a large plan takes to write, load, check and show.

python tools/bench_plan_file.py --devices 1024 --tasks 100000
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.files import read_noun, write_noun
from graphplan.nouns.plan import Plan
from graphplan.referee import check_plan
from graphplan.report.page import render_page
from graphplan.report.summary import render_text
from graphplan.report.timing import time_plan
from tests.pure.plans import GB, finish_plan
from tests.pure.strategies import chain_edges, dag_prices

T = TypeVar("T")


def make_large_plan(num_devices: int, num_tasks: int) -> Plan:
    """A chain of replicated stages, 32 deep at most, with so many tasks on so many devices."""
    num_stages = min(32, num_devices)
    replicas = num_devices // num_stages
    micro_batches = max(1, num_tasks // (2 * num_devices))
    placed = [tuple(range(s * replicas, (s + 1) * replicas)) for s in range(num_stages)]
    priced = dag_prices(
        chain_edges(num_stages),
        micro_batches,
        forward_s=0.01,
        backward_s=0.02,
        transfer_s=0.001,
        devices=placed,
        micro_batch_sizes=[replicas] * num_stages,
        update_s=0.001,
        reduce_s=0.002,
        fixed_bytes=GB,
        saved_bytes=GB // 8,
        memory_bytes=72 * GB,
    )
    return finish_plan(priced, ops_per_stage=64).plan


def main() -> None:
    """Measure once each and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=1024)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plan = make_large_plan(options.devices, options.tasks)
    figures: dict[str, float] = {
        "devices": len(plan.prices.memory_bytes_by_device),
        "tasks": sum(">" not in word for line in plan.program for word in line.split()),
        "transfers": sum(line.count(">") for line in plan.program),
    }

    def measure(name: str, work: Callable[[], T]) -> T:
        start, start_cpu = time.perf_counter(), time.process_time()
        result = work()
        figures[name] = round(time.perf_counter() - start, 3)
        figures[f"{name[:-2]}_cpu_s"] = round(time.process_time() - start_cpu, 3)
        return result

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        measure("write_s", lambda: write_noun(plan, path))
        figures["file_mb"] = round(path.stat().st_size / 1e6, 1)
        loaded = measure("load_s", lambda: read_noun(path, Plan))
    verdict = measure("check_s", lambda: check_plan(loaded))
    figures["violations"] = len(verdict.violations)
    timeline = measure("simulate_s", lambda: time_plan(loaded))
    measure("summary_s", lambda: render_text(loaded, timeline))
    page = measure("page_s", lambda: render_page(loaded, timeline))
    figures["page_mb"] = round(len(page) / 1e6, 1)
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(figures) if options.json else format_figures(figures))


def format_figures(figures: dict[str, float]) -> str:
    """One figure a line."""
    return "\n".join(f"{name:<16}{value:>10,}" for name, value in figures.items())


if __name__ == "__main__":
    main()
