"""Faults: how soon a run ends after something went wrong, what it says, and what is left.

    python -m tools.check_faults                  # every fault once, on two ranks of this machine
    python -m tools.check_faults hang kill        # some of them
    python -m tools.check_faults --list

Each fault must end in 15 s (or the timeout that its row states) with its first cause on the first
line and without a traceback of ours; no process is left; what was saved is whole, and a run that
resumes from it has, at its last step, the same weights to the bit as one that was never disturbed.
Exits with 1 when anything of that does not hold. A table in Markdown is printed at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import platform
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from tools.fault_acts import Row
from tools.fault_cases import CASES, Case
from tools.fault_scene import STEPS, Scene

AIM_S = 15.0


def train_undisturbed(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that every resumed run must come to."""
    scene = Scene(folder)
    done = scene.run("--steps", str(STEPS), "--save", str(scene.saved), "--quiet")
    assert done.code == 0, done.errors
    return scene.read_weights()[1]


def check_case(case: Case, expected: dict[str, torch.Tensor]) -> tuple[Row, list[str]]:
    """Act one fault out; the row of the table, and what is wrong."""
    with tempfile.TemporaryDirectory(prefix="graphplan-", ignore_cleanup_errors=True) as name:
        scene = Scene(Path(name), case.fault, case.settings)
        try:
            row = case.act(scene)
            wrong = list(row.wrong)
            if "Traceback" in row.told and not case.raises:
                wrong.append("a traceback is printed")
            if not math.isnan(row.seconds) and row.seconds > case.timeout_s + AIM_S:
                wrong.append(f"took {row.seconds:.1f} s")
            if case.resumes and (why := scene.goes_on_as_if_nothing(expected)):
                wrong.append(why)
        except Exception:
            row, wrong = Row(math.nan, -1, "", ()), [traceback.format_exc(limit=-3)]
        finally:
            scene.end()
    told = row.told.replace(str(scene.folder), "FOLDER").replace(platform.node(), "HOST")
    return dataclasses.replace(row, told=told), wrong


def format_row(name: str, case: Case, row: Row, wrong: list[str]) -> str:
    """A line of the table."""
    seconds = "" if math.isnan(row.seconds) else f"{row.seconds:.1f}"
    resumed = "equal" if case.resumes and not wrong else ""
    told = row.first_line.replace("|", "/")
    return (
        f"| {name} | {case.what} | {seconds} | {row.code} | {told[:160]} | {resumed} |"
        f" {' '.join('; '.join(wrong).split()) or 'fine'} |"
    )


def main() -> int:
    """All faults, or some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="faults; all when none is named")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - CASES.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; --list names all")
    if arguments.list:
        print("\n".join(f"{name:22s}{case.what}" for name, case in CASES.items()))
        return 0
    # Shells let background jobs ignore Ctrl-C, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="graphplan-") as name:
        expected = train_undisturbed(Path(name))
    lines, num_wrong = [], 0
    for name, case in CASES.items():
        if not arguments.names or name in arguments.names:
            row, wrong = check_case(case, expected)
            lines.append(format_row(name, case, row, wrong))
            print(lines[-1], flush=True)
            num_wrong += bool(wrong)
    print(f"\n{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.__version__}:")
    print("| fault | what is done | seconds | exit code | first line | resumed | verdict |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    print(f"\n{len(lines)} faults, {num_wrong} not as they should be")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
