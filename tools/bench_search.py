"""What searches find, how they repeat, what they take and what they pass through.

    python -m tools.bench_search plans --gpus 8,32 --json after.json --before before.json
    python -m tools.bench_search bytes --models dlrm,candle_uno
    python -m tools.bench_search effort --models mmt,dlrm --clusters pcie-8
    python -m tools.bench_search files --models mmt
    python -m tools.bench_search llama --gpus 64,512

`plans` searches for every example on every cluster: step, bound, gap, processor seconds without
imports and capture; with `--before`, the same rows of another run stand beside. `bytes` makes every
plan again in fresh processes (three times quietly, three times beside six busy processes, on one
core, in another folder, time zone and hash seed, without the processor's vector instructions) and
compares the files. `effort` searches with a quarter, one and four times the effort. `files` counts
the files whose functions one search calls. `llama` plans for a Llama-3-70B (sequence 4,096, batch
1,024, mixed bfloat16) on H100s, under `auto` and `equal`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import graphplan
from graphplan.captures import load_model_graph
from graphplan.cost.hardware import find_cluster
from graphplan.errors import GraphplanError
from graphplan.files import write_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import search_plan

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ("mmt", "dlrm", "candle_uno", "clip", "gpt", "unet", "resnet", "gnn", "t5")
CLUSTERS = ("dgx-a100", "pcie-8", "dgx-h100")
EFFORTS = (0.25, 1.0, 4.0)
NO_VECTORS = {
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_ICL",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
}
"""numpy without them, and numba for any x86-64; features that a processor lacks are ignored."""
NUM_BUSY = 6


def main(argv: list[str] | None = None) -> int:
    """Run one part, print its rows, write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=["plans", "bytes", "effort", "files", "llama"])
    parser.add_argument("--models", default=",".join(EXAMPLES))
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--gpus", default="8")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path)
    args = parser.parse_args(argv)
    parts = {
        "plans": list_plans,
        "bytes": list_bytes,
        "effort": list_efforts,
        "files": list_files,
        "llama": list_llamas,
    }
    rows = []
    for row in parts[args.part](args):
        rows.append(row)
        print(" ".join(f"{key}={_show(value)}" for key, value in row.items()), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.part == "plans":
        print(_sum_up(rows))
    return int(any(row.get("plans", 1) != 1 for row in rows))


def _show(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _list_problems(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    gpus = [int(each) for each in args.gpus.split(",")]
    return itertools.product(args.models.split(","), args.clusters.split(","), gpus)


def _load(model: str) -> OpGraph:
    return load_model_graph(str(ROOT / "examples" / f"{model}.py"), {})


def _search(graph: OpGraph, cluster: str, gpus: int, **options: Any) -> dict[str, Any]:
    start = time.process_time()
    try:
        plan = search_plan(graph, find_cluster(cluster, gpus=gpus), SearchOptions(**options))
    except GraphplanError as error:
        return {"error": type(error).__name__, "cpu_s": time.process_time() - start}
    step_s = plan.prediction.step_s
    return {
        "step_s": step_s,
        "gap": step_s / plan.bound.step_s - 1,
        "stages": len(plan.stages.stages),
        "cpu_s": time.process_time() - start,
    }


# -- plans and efforts -----------------------------------------------------------------------------


def list_plans(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each model, cluster and number of GPUs."""
    known = json.loads(args.before.read_text()) if args.before else []
    before = {(row["model"], row["cluster"], row["gpus"]): row for row in known}
    for model, cluster, gpus in _list_problems(args):
        row: dict[str, Any] = {"model": model, "cluster": cluster, "gpus": gpus}
        row |= _search(_load(model), cluster, gpus, effort=args.effort)
        other = before.get((model, cluster, gpus))
        if other and "step_s" in other and "step_s" in row:
            row |= {"before_s": other["step_s"], "ratio": row["step_s"] / other["step_s"]}
            row["gap_before"] = other.get("gap")
        yield row


def _sum_up(rows: list[dict[str, Any]]) -> str:
    """Mean gap, worst and mean ratio, most processor seconds."""
    gaps = [row["gap"] for row in rows if "gap" in row]
    found = [f"{len(rows)} rows, mean gap {sum(gaps) / max(1, len(gaps)):.2%}"]
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        found.append(f"over before: mean {mean:.4f}, worst {max(ratios):.4f}")
    found.append(f"at most {max(row['cpu_s'] for row in rows):.1f} s of processor time")
    return ", ".join(found)


def list_efforts(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Step and processor seconds for each effort."""
    for model, cluster, gpus in _list_problems(args):
        graph, row = _load(model), {"model": model, "cluster": cluster, "gpus": gpus}
        for effort in EFFORTS:
            found = _search(graph, cluster, gpus, effort=effort)
            row |= {f"step_{effort:g}": found.get("step_s"), f"cpu_{effort:g}": found["cpu_s"]}
        yield row


def list_llamas(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of H100s and planner."""
    from tools.capture_large import capture_llama

    graph = capture_llama(80, 4096)
    options = {"batch_size": 1024, "precision": "bfloat16", "mixed": True, "effort": args.effort}
    for gpus, planner in itertools.product(args.gpus.split(","), ("auto", "equal")):
        row: dict[str, Any] = {"model": "llama-70b", "gpus": int(gpus), "planner": planner}
        baselines = planner == "auto"
        asked = options | {"planner": planner, "baselines": baselines}
        yield row | _search(graph, "dgx-h100", int(gpus), **asked)


# -- bytes -----------------------------------------------------------------------------------------


def list_bytes(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """How many different files nine searches of each problem write."""
    with tempfile.TemporaryDirectory() as folder:
        for model, cluster, gpus in _list_problems(args):
            path = Path(folder) / f"{model}.json"
            if not path.exists():
                write_noun(_load(model), path)
            command = [sys.executable, "-m", "graphplan", "search", str(path), "--quiet"]
            command += ["--cluster", cluster, "--gpus", str(gpus), "-o"]
            found = [_hash_plan(command, Path(folder) / "plan.json") for _ in range(3)]
            with _busy(NUM_BUSY):
                found += [_hash_plan(command, Path(folder) / "plan.json") for _ in range(3)]
            found.append(_hash_plan(["taskset", "-c", "0", *command], Path(folder) / "plan.json"))
            with tempfile.TemporaryDirectory() as other:
                env = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "12345"}
                found.append(_hash_plan(command, Path(other) / "other.json", env, other))
            with tempfile.TemporaryDirectory() as cache:
                env = NO_VECTORS | {"NUMBA_CACHE_DIR": cache}
                found.append(_hash_plan(command, Path(folder) / "plan.json", env))
            row: dict[str, Any] = {"model": model, "cluster": cluster, "gpus": gpus}
            yield row | {"runs": len(found), "plans": len(set(found)), "sha256": found[0][:12]}


def _hash_plan(
    command: list[str], path: Path, env: dict[str, str] | None = None, folder: str | None = None
) -> str:
    told = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    subprocess.run([*command, str(path)], check=True, env=told, cwd=folder)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _busy(count: int) -> Iterator[None]:
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


# -- files -----------------------------------------------------------------------------------------


def list_files(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Files of ours whose functions one search calls, from the graph to the plan."""
    inside = str(Path(graphplan.__file__).parent)
    for model, cluster, gpus in _list_problems(args):
        graph = _load(model)
        seen: set[str] = set()

        def watch(frame: FrameType, event: str, _: Any, seen: set[str] = seen) -> None:
            if event == "call" and frame.f_code.co_name != "<module>":
                seen.add(frame.f_code.co_filename)

        sys.setprofile(watch)
        try:
            _search(graph, cluster, gpus, effort=args.effort)
        finally:
            sys.setprofile(None)
        own = sorted(path for path in seen if path.startswith(inside))
        yield {"model": model, "cluster": cluster, "gpus": gpus, "files": len(own)}


if __name__ == "__main__":
    sys.exit(main())
