"""What more cuts of large prime modules add to the drafts of the `graph` planner's first program.

    python -m tools.bench_primes --gpus 8,16 --json rows.json

The graphs of tools/families.py on the Summit cluster; steps are evaluated, the best of the twelve
drafts that look best, before any local search. Time is not limited.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from graphplan.cost.model import CostModel
from graphplan.nouns.problem import Problem
from graphplan.partition.assemble import assemble_stages
from graphplan.partition.dag.work import measure_times
from graphplan.partition.drafts.appraise import Appraiser
from graphplan.partition.graph import MAX_ENRICHED, MAX_ITEMS, MAX_SETTINGS, NUM_CANDIDATES
from graphplan.partition.trees.candidates import CandidateSearch
from graphplan.planner.evaluate import make_evaluator
from tools.bench_graphpipe import parse_numbers
from tools.bench_polish import pose_all


def main() -> int:
    """Run all families, print and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=parse_numbers, default=[8, 16])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name, gpus, problem in pose_all("families", args.gpus):
        plain_s, plain_cpu_s = measure(problem, 0)
        rich_s, rich_cpu_s = measure(problem, MAX_ENRICHED)
        row = {
            "problem": name,
            "gpus": gpus,
            "plain_s": plain_s,
            "rich_s": rich_s,
            "gain_percent": round(100 * (plain_s / rich_s - 1), 2),
            "plain_cpu_s": round(plain_cpu_s, 1),
            "rich_cpu_s": round(rich_cpu_s, 1),
        }
        rows.append(row)
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows else 1


def measure(problem: Problem, max_enriched: int) -> tuple[float, float]:
    """The best evaluated step, and processor seconds of the dynamic program."""
    cost = CostModel(problem)
    evaluate = make_evaluator(cost)
    start = time.process_time()
    search = CandidateSearch(
        cost,
        Appraiser(cost),
        measure_times(problem),
        max_items=MAX_ITEMS,
        max_settings=MAX_SETTINGS,
        max_enriched=max_enriched,
        is_late=lambda: False,
    )
    ranked = sorted(search.run(), key=lambda each: each.step_s)[:NUM_CANDIDATES]
    spent_s = time.process_time() - start
    return min(evaluate(assemble_stages(problem, each.draft)) for each in ranked), spent_s


if __name__ == "__main__":
    raise SystemExit(main())
