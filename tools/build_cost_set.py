"""Build the training set of the learned costs: measured tables of many small models on this CPU.

    OMP_NUM_THREADS=1 python tools/build_cost_set.py --folder build/costs --minutes 7

Every finished model is kept in the folder, so that a run that was stopped, or that has used up its
minutes, goes on where it ended; when all are there the set is written. Equal units of different
models are measured once a round. With one thread the clock is that thread's running time, so that
other programs do not count; but they slow it down through caches and memory. So models are measured
in rounds, minutes apart, and the fastest round of everything counts; a set is written from those
rounds that are there. `spread` in the tables says how much the times scattered.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Sequence
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
UNIT_EFFORT = Effort(warm_up=2, min_repeats=4, budget_s=0.007, patience=2.5)
STEP_EFFORT = Effort(warm_up=1, min_repeats=4, budget_s=0.12, patience=3.0, calm=0.1)
DIGITS = 4
"""Significant digits of the times: below the noise, and half the size of the file."""


def main() -> int:
    """Measure what is missing, and write the set when nothing is."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("build/costs"))
    parser.add_argument("--minutes", type=float, default=7.0, help="stop after so many")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of measuring all")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer random models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    environment = describe_environment(find_clock("cpu"))
    recipes = list_recipes(seed=options.seed, scale=options.scale)
    folders = [options.folder / f"round{number}" for number in range(options.rounds)]
    start = time.monotonic()
    for folder in folders:
        folder.mkdir(exist_ok=True)
        cache = ProfileCache(environment, folder=folder)
        for path, recipe in zip(list_paths(folder, recipes), recipes, strict=True):
            if not path.exists() and time.monotonic() - start < 60 * options.minutes:
                measure_recipe(recipe, path, cache)
    rounds = [list_paths(folder, recipes) for folder in folders]
    known = [[path for path in paths if path.exists()] for paths in zip(*rounds, strict=True)]
    if not all(known):
        print(f"{sum(map(bool, known))} of {len(known)} models; run again")
        return 1
    samples = [merge_samples(paths) for paths in known]
    write_set(samples, options.output, f"{environment}, {datetime.date.today()}")
    missing = sum(options.rounds - len(paths) for paths in known)
    if missing:
        print(f"{missing} measurements of later rounds are missing; run again for them")
    return 0


def list_paths(folder: Path, recipes: list[Recipe]) -> list[Path]:
    """Where the samples of a round are kept."""
    return [folder / f"{i:03d}-{recipe.model}.json" for i, recipe in enumerate(recipes)]


def measure_recipe(recipe: Recipe, path: Path, cache: ProfileCache) -> None:
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
        rounds=1,
    )
    sample = CostSample(model=recipe.model, graph=captured.graph, table=table)
    write_noun(CostSet(devices=(find_device_type("cpu"),), samples=(sample,)), path)
    spread = statistics.median(row.spread for row in table.rows)
    ratios = " ".join(f"{ratio:.2f}" for ratio in table.calibration)
    print(
        f"{path.stem}: {len(table.rows)} ops at {recipe.batch_sizes} in"
        f" {time.monotonic() - start:.1f} s, spread {spread:.2f}, step / sum {ratios}",
        flush=True,
    )


def merge_samples(paths: Sequence[Path]) -> CostSample:
    """The fastest round of every unit and of every step."""
    rounds = [read_noun(path, CostSet).samples[0] for path in paths]
    tables = [sample.table for sample in rounds]
    rows = tuple(merge_rows(each) for each in zip(*(table.rows for table in tables), strict=True))
    steps = [[sum_rows(t.rows, j) * ratio for j, ratio in enumerate(t.calibration)] for t in tables]
    table = msgspec.structs.replace(
        tables[0],
        rows=rows,
        calibration=tuple(
            round(min(each) / sum_rows(rows, j), DIGITS)
            for j, each in enumerate(zip(*steps, strict=True))
        ),
    )
    return msgspec.structs.replace(rounds[0], table=table)


def sum_rows(rows: Sequence[OpProfile], j: int) -> float:
    """Seconds of all ops at one size."""
    return sum(row.forward_s[j] + row.input_grad_s[j] + row.weight_grad_s[j] for row in rows)


def merge_rows(rows: Sequence[OpProfile]) -> OpProfile:
    """The fastest of every time, with a few digits."""
    return msgspec.structs.replace(
        rows[0],
        forward_s=_find_fastest([row.forward_s for row in rows]),
        input_grad_s=_find_fastest([row.input_grad_s for row in rows]),
        weight_grad_s=_find_fastest([row.weight_grad_s for row in rows]),
        spread=round(min(row.spread for row in rows), DIGITS),
        fit_error=round(min(row.fit_error for row in rows), DIGITS),
    )


def _find_fastest(columns: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(float(f"{min(each):.{DIGITS}g}") for each in zip(*columns, strict=True))


def write_set(samples: Sequence[CostSample], output: Path, provenance: str) -> None:
    """All samples in one file."""
    found = CostSet(
        devices=(find_device_type("cpu"),), samples=tuple(samples), provenance=provenance
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
