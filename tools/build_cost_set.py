"""Build the training set of the learned costs: measured tables of many small models on this CPU.

    OMP_NUM_THREADS=1 python tools/build_cost_set.py --folder build/costs --minutes 7

Every finished model is kept in the folder, so that a run that was stopped, or that has used up its
minutes, goes on where it ended; when all are there the set is written. Equal units of different
models are measured once. With one thread the clock is that thread's running time, so that other
programs do not count; `spread` in the tables says how much the times scattered.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from pathlib import Path

import msgspec
import torch

from graphplan.cost.cache import ProfileCache
from graphplan.cost.hardware import find_device_type
from graphplan.cost.measure import measure_table
from graphplan.cost.measure_clock import describe_environment, find_clock
from graphplan.cost.measure_unit import Effort
from graphplan.files import read_noun, write_noun
from graphplan.nouns.costset import CostSample, CostSet
from graphplan.nouns.table import OpProfile
from tools.cost_models import Recipe, list_recipes

OUTPUT = Path(__file__).resolve().parents[1] / "profiles" / "costs" / "cpu.json.gz"
UNIT_EFFORT = Effort(warm_up=2, min_repeats=4, budget_s=0.008, patience=4.0)
STEP_EFFORT = Effort(warm_up=1, min_repeats=4, budget_s=0.15, patience=3.0, calm=0.1)
DIGITS = 4
"""Significant digits of the times: below the noise, and half the size of the file."""


def main() -> int:
    """Measure what is missing, and write the set when nothing is."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("build/costs"))
    parser.add_argument("--minutes", type=float, default=7.0, help="stop after so many")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of measuring every unit")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer random models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    environment = describe_environment(find_clock("cpu"))
    cache = ProfileCache(environment, folder=options.folder)
    recipes = list_recipes(seed=options.seed, scale=options.scale)
    paths = [options.folder / f"{i:03d}-{recipe.model}.json" for i, recipe in enumerate(recipes)]
    start = time.monotonic()
    for path, recipe in zip(paths, recipes, strict=True):
        if path.exists():
            continue
        if time.monotonic() - start > 60 * options.minutes:
            print(f"{sum(path.exists() for path in paths)} of {len(paths)} models; run again")
            return 1
        measure_recipe(recipe, path, cache, rounds=options.rounds)
    write_set(paths, options.output, f"{environment}, {datetime.date.today()}")
    return 0


def measure_recipe(recipe: Recipe, path: Path, cache: ProfileCache, *, rounds: int) -> None:
    """Measure one model and keep it as a set of one sample."""
    start = time.monotonic()
    captured, inputs = recipe.capture()
    table = measure_table(
        captured,
        device="cpu",
        batch_sizes=recipe.batch_sizes,
        cache=cache,
        inputs=inputs,
        effort=UNIT_EFFORT,
        step_effort=STEP_EFFORT,
        rounds=rounds,
    )
    table = msgspec.structs.replace(table, rows=tuple(round_row(row) for row in table.rows))
    sample = CostSample(model=recipe.model, graph=captured.graph, table=table)
    write_noun(CostSet(devices=(find_device_type("cpu"),), samples=(sample,)), path)
    spread = statistics.median(row.spread for row in table.rows)
    ratios = " ".join(f"{ratio:.2f}" for ratio in table.calibration)
    print(
        f"{path.stem}: {len(table.rows)} ops at {recipe.batch_sizes} in"
        f" {time.monotonic() - start:.1f} s, spread {spread:.2f}, step / sum {ratios}",
        flush=True,
    )


def round_row(row: OpProfile) -> OpProfile:
    """A row with times of a few digits."""
    return msgspec.structs.replace(
        row,
        forward_s=_round(row.forward_s),
        input_grad_s=_round(row.input_grad_s),
        weight_grad_s=_round(row.weight_grad_s),
        spread=round(row.spread, 3),
        fit_error=round(row.fit_error, 3),
    )


def _round(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{each:.{DIGITS}g}") for each in seconds)


def write_set(paths: list[Path], output: Path, provenance: str) -> None:
    """All samples in one file."""
    parts = [read_noun(path, CostSet) for path in paths]
    found = CostSet(
        devices=parts[0].devices,
        samples=tuple(sample for part in parts for sample in part.samples),
        provenance=provenance,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_noun(found, output)
    rows = sum(len(sample.table.rows) for sample in found.samples)
    print(
        f"{output}: {len(found.samples)} samples of {len(found.models)} models, {rows:,} ops,"
        f" {output.stat().st_size / 2**20:.2f} MiB"
    )


if __name__ == "__main__":
    raise SystemExit(main())
