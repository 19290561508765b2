"""Training on 8 ranks against training in one process: every schedule on every shape of graph.

    python tools/check_training.py                    # 8 gloo processes on this machine
    python tools/check_training.py --schedule gpipe   # one schedule
    python tools/check_training.py --pairs            # replicas that share state

Prints the largest difference of losses and parameters after ten steps of each; exits with 1 if one
exceeds 1e-10 in double or 1e-5 in single precision (pairs: in double). The tests do the same on 2
to 4 ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tests.processes.crew import Crew
from tests.processes.training import Result, Setup, train_dtypes, train_pipeline, train_whole

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
PLAIN = ("gpipe", "1f1b", "kfkb", "zero-bubble", "split", "list")
IN_TURN = ("interleaved", "gpipe", "zero-bubble", "list")


def make_setup(case: str, devices: list[tuple[int, ...]], *, micro_batch_size: int = 4) -> Setup:
    """Ten steps of four micro-batches or more."""
    return Setup(
        case=case,
        devices=devices,
        batch_size=16,
        micro_batch_size=micro_batch_size,
        num_steps=10,
    )


ONE, OTHER = (0, 1, 2, 3), (4, 5, 6, 7)
SHAPES: dict[str, tuple[Setup, tuple[str, ...]]] = {
    "chain of 8": (make_setup("long", [(i,) for i in range(8)], micro_batch_size=2), PLAIN),
    "two-tower": (make_setup("towers", [(0, 1), (2, 3), (4, 5, 6, 7)]), PLAIN),
    "U-Net": (make_setup("unet", [(0, 1), (2, 3), (4, 5), (6, 7)]), PLAIN),
    "MMT": (make_setup("mmt", [(0, 1), (2, 3), (4, 5, 6, 7)]), PLAIN),
    "tied": (make_setup("tied", [(0, 1), (2, 3, 4, 5), (6, 7)]), PLAIN),
    "replicated": (make_setup("chain", [(0,), (1, 2), (3, 4, 5, 6), (7,)]), PLAIN),
    "chain in turn": (make_setup("chain", [ONE, OTHER] * 2), IN_TURN),
    "two-tower in turn": (make_setup("towers", [ONE, OTHER, ONE]), IN_TURN),
    "U-Net in turn": (make_setup("unet", [(0, 1), (2, 3, 4, 5), (6, 7), (0, 1)]), IN_TURN),
    "MMT in turn": (make_setup("mmt", [ONE, OTHER, OTHER]), IN_TURN),
}


NO_GRADIENT = "in_proj_bias"
"""The bias of keys has none, but rounding, which AdamW and Adafactor divide by its own size."""
TWO_STAGES = {f"blocks.{i}": i // 2 for i in range(4)}
PAIRS: dict[str, Sequence[Any]] = {
    "shape": ("two stages", "two-tower", "U-Net", "MMT", "tied", "U-Net in turn"),
    "schedule": ("gpipe", "1f1b", "zero-bubble", "split", "list"),
    "zero": (0, 1, 2, 3),
    "optimizer": ("momentum", "adamw", "adafactor"),
    "clip_norm": (None, 0.1),
    "bucket_bytes": (8 * 40, 25_000_000),
    "recompute": (False, True),
}
"""What a run of replicas may choose; each two choices meet in one case at least."""
CHOSEN = {name: setup for name, (setup, _) in SHAPES.items()} | {
    "two stages": dataclasses.replace(make_setup("chain", [ONE, OTHER]), stage_by_module=TWO_STAGES)
}


def list_cases() -> list[dict[str, Any]]:
    """Cases in which all pairs of choices meet, found greedily."""
    names = list(PAIRS)
    every = [dict(zip(names, each, strict=True)) for each in itertools.product(*PAIRS.values())]
    legal = [each for each in every if not _is_refused(each)]
    wanted = {pair for case in legal for pair in _list_pairs(case)}
    found = []
    while wanted:
        best = max(legal, key=lambda case: len(wanted & _list_pairs(case)))
        wanted -= _list_pairs(best)
        found.append(best)
    return found


def _is_refused(case: dict[str, Any]) -> bool:
    """1F1B and the split of it want one stage on a device."""
    return case["shape"].endswith("in turn") and case["schedule"] in ("1f1b", "split")


def _list_pairs(case: dict[str, Any]) -> set[Any]:
    return set(itertools.combinations(case.items(), 2))


def make_case(case: dict[str, Any]) -> Setup:
    """The setup of a case."""
    setup = CHOSEN[case["shape"]]
    clip = {} if case["clip_norm"] is None else {"clip_norm": case["clip_norm"]}
    return dataclasses.replace(
        setup,
        schedule=case["schedule"],
        optimizer=case["optimizer"],
        zero=[case["zero"]] * len(setup.devices),
        training={"bucket_bytes": case["bucket_bytes"]},
        pipeline=clip,
        recompute=range(len(setup.devices)) if case["recompute"] else (),
    )


def check_case(crew: Crew, case: dict[str, Any]) -> bool:
    """Train both ways and print the difference."""
    setup = make_case(case)
    results: list[Result] = crew.run(setup.num_ranks, train_pipeline, setup)
    if case["optimizer"] != "momentum":
        for each in results:
            for name in [name for name in each.weights if name.endswith(NO_GRADIENT)]:
                del each.weights[name]
    gap = measure_gap(results, train_whole(setup, clip_norm=case["clip_norm"]))
    words = "  ".join(f"{key} {value}" for key, value in case.items())
    print(f"{gap:.1e} {'equal' if gap <= 1e-10 else 'DIFFERENT'}   {words}", flush=True)
    return gap <= 1e-10


def measure_gap(results: list[Result], wanted: Result) -> float:
    """The largest difference of a loss or a parameter of any rank; not a number if one is not."""
    gaps = [abs(a - b) for each in results for a, b in zip(each.losses, wanted.losses, strict=True)]
    for each in results:
        for name, tensor in each.weights.items():
            gaps.append(float((tensor - wanted.weights[name]).abs().max()))
    return float(torch.tensor(gaps, dtype=torch.float64).max())


def check_shape(crew: Crew, name: str, setup: Setup) -> bool:
    """Train both ways and print the differences."""
    dtypes = list(TOLERANCES)
    results: list[list[Result]] = crew.run(setup.num_ranks, train_dtypes, setup, dtypes)
    gaps = [
        measure_gap([each[place] for each in results], train_whole(setup, dtype=dtype))
        for place, dtype in enumerate(dtypes)
    ]
    fine = all(gap <= TOLERANCES[dtype] for gap, dtype in zip(gaps, dtypes, strict=True))
    print(
        f"{name:18s} {setup.schedule:12s} {setup.num_ranks} ranks   fp64 {gaps[0]:.1e}"
        f"   fp32 {gaps[1]:.1e}   {'equal' if fine else 'DIFFERENT'}",
        flush=True,
    )
    return fine


def main() -> int:
    """All of them, or one schedule."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--schedule", help="Only this one.")
    parser.add_argument("--pairs", action="store_true", help="Replicas that share state.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        crew = Crew(Path(folder))
        try:
            found = [check_case(crew, each) for each in list_cases() if arguments.pairs]
            found += [
                check_shape(crew, name, dataclasses.replace(setup, schedule=schedule))
                for name, (setup, schedules) in SHAPES.items()
                for schedule in schedules
                if arguments.schedule in (None, schedule) and not arguments.pairs
            ]
        finally:
            crew.dismiss()
    print(f"{sum(found)} of {len(found)} equal to one process")
    return 0 if found and all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
