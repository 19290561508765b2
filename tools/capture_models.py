"""Capture outside models and print a table: ops, seconds, method, difference from eager, cuts.

    python tools/capture_models.py [name ...] [--json]
    python tools/capture_models.py --examples [--json]

Every model is small, with random weights; nothing is downloaded. `gradients` is the largest
difference of loss and gradients between eager and the captured model at a batch size that was not
captured, `3 stages` the same for a chain of three stages. `--examples` captures the files of
examples/ in their full size, which allocates no weights.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphplan.errors import GraphplanError
from graphplan.frontend import load_model_file, trace_model_file, trace_module
from tests.models.test_capture_models import eager_loss
from tests.models.zoo import EXAMPLES, ZOO
from tests.models.zoo_others import OTHERS
from tests.models.zoo_transformers import TRANSFORMERS
from tests.torch.comparing import Step, run_cut, run_step
from tests.torch.cuts import chain_cut

MODELS = ZOO | TRANSFORMERS | OTHERS
TOLERANCE = 1e-6
"""Between eager and captured; compiled parts of a model add in another order."""


def difference(found: Step, wanted: Step) -> float:
    """The largest difference of loss, gradients and buffers; NaN counts as infinite."""
    if found.gradients.keys() != wanted.gradients.keys():
        return float("inf")
    pairs = [(found.loss, wanted.loss)]
    pairs += [(found.gradients[name], wanted.gradients[name]) for name in wanted.gradients]
    pairs += [(found.buffers[name], wanted.buffers[name]) for name in wanted.buffers]
    largest = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    return largest if largest == largest else float("inf")


def measure(name: str) -> dict[str, Any]:
    """Capture one model and compare it; what is refused says why."""
    try:
        return compare(name)
    except GraphplanError as error:
        return {"model": name, "refused": error.message}


def compare(name: str) -> dict[str, Any]:
    """Capture one model and compare it; raises what the capture raises."""
    entry = MODELS[name]
    try:
        importlib.import_module(entry.package)
    except ImportError as error:
        return {"model": name, "skipped": str(error).splitlines()[0]}
    torch.manual_seed(0)
    module, inputs = entry.make()
    start, cpu = time.perf_counter(), time.process_time()
    captured = trace_module(module, inputs, loss=entry.loss)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    graph = captured.graph
    batch = inputs(5 if graph.batch == "dynamic" else graph.batch_size)
    eager = run_step(module, lambda: eager_loss(entry, module, batch))

    def run_captured() -> Any:
        output = captured.run(batch)
        return output["loss"] if isinstance(output, dict) else output

    staged = run_cut(captured, module, chain_cut(graph, 3), batch)
    return {
        "model": name,
        "ops": len(graph.ops),
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu_s, 1),
        "method": graph.capture.split(", torch ")[0],
        "batch": graph.batch,
        "assumptions": sorted({each.kind for each in graph.assumptions}),
        "difference": difference(run_step(module, run_captured), eager),
        "difference_3_stages": difference(staged, eager),
    }


def print_row(row: dict[str, Any]) -> None:
    """One line of the table."""
    for word in ("skipped", "refused"):
        if word in row:
            print(f"| {row['model']} | | | {word}: {row[word]} | | | |", flush=True)
            return
    said = f"; {', '.join(row['assumptions'])}" if row["assumptions"] else ""
    print(
        f"| {row['model']} | {row['ops']} | {row['cpu_s']} | {row['method']}{said} |"
        f" {row['batch']} | {row['difference']:g} | {row['difference_3_stages']:.1e} |",
        flush=True,
    )


def is_same(row: dict[str, Any]) -> bool:
    """Whether a model was captured, and computes what eager computes, whole and cut."""
    return bool(max(row.get("difference", 1), row.get("difference_3_stages", 1)) < TOLERANCE)


def measure_example(path: Path) -> dict[str, Any]:
    """Capture a file of examples/ in its full size."""
    start, cpu = time.perf_counter(), time.process_time()
    graph = trace_model_file(load_model_file(path)).graph
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return {
        "file": path.name,
        "ops": len(graph.ops),
        "edges": len(graph.edges),
        "parameters": sum(each.spec.num_elements(1) for each in graph.weights if each.trainable),
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu_s, 1),
        "batch": graph.batch,
    }


def print_example(row: dict[str, Any]) -> None:
    """One line of the examples' table."""
    print(
        f"| {row['file']} | {row['ops']:,} | {row['edges']:,} | {row['parameters'] / 1e6:,.1f} M |"
        f" {row['cpu_s']} | {row['batch']} |"
    )


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--examples", action="store_true", help="the files of examples/ instead")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    options = parser.parse_args()
    if options.examples:
        paths = sorted(EXAMPLES.glob("*.py"))
        if options.json:
            print(json.dumps([measure_example(path) for path in paths]))
            return
        print("| file | ops | edges | parameters | CPU s | batch |")
        print("|---|---:|---:|---:|---:|---|")
        for path in paths:
            print_example(measure_example(path))
        return
    names = options.names or list(MODELS)
    if options.json:
        print(json.dumps([measure(name) for name in names]))
        return
    print("| model | ops | CPU s | captured by | batch | gradients | 3 stages |")
    print("|---|---:|---:|---|---|---:|---:|")
    rows = []
    for name in names:
        rows.append(measure(name))
        print_row(rows[-1])
    tried = [row for row in rows if "skipped" not in row]
    print(
        f"\n{sum(map(is_same, tried))} of {len(tried)} captured and equal, whole and in stages;",
        end=" ",
    )
    print(f"{time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main()
