"""Ranks hold their own stages only, so that a model may be larger than the memory of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from graphplan.files import write_noun
from graphplan.frontend import load_model_file, trace_model_file
from tests.processes.large import NUM_LAYERS, WEIGHT_BYTES
from tests.processes.plans import plan_by_hand

MODEL = Path(__file__).parent / "large.py"


def measure_peaks(folder: Path, num_ranks: int) -> list[int]:
    """Most bytes of each rank, with the layers divided evenly; the same losses come of it."""
    graph = trace_model_file(load_model_file(MODEL)).graph
    names = [op.name for op in graph.ops]
    layers = [names.index(op.name) for op in graph.ops if op.weights]
    assert len(layers) == NUM_LAYERS
    plan = plan_by_hand(
        graph,
        {n: int(num_ranks == 2 and i >= layers[NUM_LAYERS // 2]) for i, n in enumerate(names)},
        devices=[(rank,) for rank in range(num_ranks)],
        batch_size=4,
        micro_batch_size=2,
    )
    path = folder / f"{num_ranks}.json"
    write_noun(plan, path)
    words = ("run", str(path), str(MODEL), "--device", "cpu", "--steps", "2", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "graphplan", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    peaks: list[int] = json.loads(done.stdout)["peak_bytes_by_rank"]
    return peaks


def test_two_ranks_hold_half_a_model_each(tmp_path: Path) -> None:
    """Half of four times the weights less; what a process needs besides scatters by some of it."""
    (whole,), halves = measure_peaks(tmp_path, 1), measure_peaks(tmp_path, 2)
    assert whole > 4 * WEIGHT_BYTES
    assert max(halves) < whole - WEIGHT_BYTES
