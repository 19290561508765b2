"""Faults: how soon a run ends after a rank has failed, with which code and which first line.

    python tools/check_faults.py                  # every fault once, on two ranks of this machine
    python tools/check_faults.py --fault hang

The aim is 15 s from the fault to the end of the last process; exits with 1 when it is missed, when
the exit code is 0, or when a process is left. The tests check the messages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.processes.test_faults import MODEL, list_ranks, write_plan

ROOT = Path(__file__).resolve().parents[1]
FAULTS: dict[str, tuple[str, ...]] = {
    "raise": (),
    "memory": (),
    "infinite": ("--check-finite",),
    "kill": (),
    "hang": (),
    "stop": (),
    "model": (),
}
AIM_S = 15.0


def list_ports() -> set[str]:
    """Addresses on which somebody listens."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add(f"{words[1]} of {words[9]}")
    return found


def check_fault(fault: str, options: tuple[str, ...], folder: Path) -> bool:
    """Run until the fault ends it, and print how it ended."""
    plan, clock = write_plan(folder, fault), folder / "clock"
    command = [sys.executable, "-m", "graphplan", "run", str(plan), str(MODEL), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--set", f"fault={fault}", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FAULT_CLOCK": str(clock)},
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    end = time.time()
    seconds = end - float(clock.read_text()) if clock.exists() else float("nan")
    left = list_ranks(plan)
    print(
        f"{fault:9s} ended {seconds:5.1f} s after the fault, exit code {done.returncode},"
        f" {len(left)} processes left\n  {done.stderr.splitlines()[0] if done.stderr else ''}",
        flush=True,
    )
    return done.returncode != 0 and not left and not seconds > AIM_S


def main() -> int:
    """All faults, or one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fault", choices=list(FAULTS))
    arguments = parser.parse_args()
    before, fine = list_ports(), True
    for fault, options in FAULTS.items():
        if arguments.fault in (None, fault):
            with tempfile.TemporaryDirectory(prefix="graphplan-") as folder:
                fine &= check_fault(fault, options, Path(folder))
    new = list_ports() - before
    print(f"listening ports that were not there before: {len(new)}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
