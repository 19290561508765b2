"""Scenes of faults: a plan on two ranks, runs that are disturbed, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from graphplan_runtime.checkpoints.checkpoint import read_checkpoint, read_manifest
from graphplan_runtime.checkpoints.shelf import find_checkpoint
from tests.processes.test_faults import MODEL, list_ranks, write_plan

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 300.0
STEPS = 6
"""Of a whole run, with or without a fault."""


@dataclass
class Outcome:
    """How a run or a command has ended."""

    code: int
    output: str
    errors: str
    seconds: float
    """From the fault to the end of the last process; not a number when no moment is the fault's."""

    @property
    def first_line(self) -> str:
        """What the user reads first."""
        lines = (self.errors or self.output).strip().splitlines()
        return lines[0] if lines else ""


@dataclass
class Scene:
    """A folder with a plan, in which something goes wrong."""

    folder: Path
    fault: str = "none"
    settings: tuple[str, ...] = ()
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def plan(self) -> Path:
        """Made when it is first needed."""
        path = self.folder / "plan.json"
        if not path.exists():
            numbers = {k: int(v) for k, _, v in (each.partition("=") for each in self.settings)}
            write_plan(self.folder, self.fault, **numbers)
        return path

    @property
    def saved(self) -> Path:
        """Where runs of this scene save."""
        return self.folder / "saved"

    def start(self, *options: str, limits: str = "", **environment: str) -> subprocess.Popen[str]:
        """`graphplan run` with the scene's fault, under limits of the shell if there are any."""
        words = ["run", str(self.plan), str(MODEL), "--device", "cpu"]
        for each in (f"fault={self.fault}", *self.settings):
            words += ["--set", each]
        return self.call([*words, *options], limits=limits, **environment)

    def call(
        self, words: Sequence[str], *, limits: str = "", **environment: str
    ) -> subprocess.Popen[str]:
        """Any command of graphplan."""
        command = [sys.executable, "-m", "graphplan", *words]
        if limits:
            command = ["bash", "-c", f'{limits}; exec "$@"', "bash", *command]
        clock = {"FAULT_CLOCK": str(self.folder / "clock"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **clock, **environment},
            cwd=ROOT,
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], *, since: float | None = None) -> Outcome:
        """Wait for the end; `since` is the moment of the fault, else the model file's clock."""
        output, errors = process.communicate(timeout=LONGEST_S)
        while list_ranks(self.plan):
            time.sleep(0.05)
        clock = self.folder / "clock"
        if since is None and clock.exists():
            since = float(clock.read_text())
            clock.unlink()
        seconds = time.time() - since if since is not None else float("nan")
        return Outcome(process.returncode, output, errors, seconds)

    def run(self, *options: str, limits: str = "", **environment: str) -> Outcome:
        """Start and wait."""
        return self.finish(self.start(*options, limits=limits, **environment))

    def wait_for_step(self, process: subprocess.Popen[str], count: int = 1) -> None:
        """Until so many steps have been trained."""
        assert process.stdout is not None
        while count:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            count -= "loss" in line

    def find_rank(self, number: int) -> int:
        """The process of a rank."""
        for pid in list_ranks(self.plan):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={number}".encode() in words:
                return pid
        raise AssertionError(f"rank {number} does not run")

    def read_weights(self, folder: Path | None = None) -> tuple[int, dict[str, torch.Tensor]]:
        """Step and verified tensors of the last checkpoint; (0, {}) when there is none."""
        found = find_checkpoint(folder or self.saved)
        if found is None:
            return 0, {}
        manifest = read_manifest(found.path)
        return manifest.step, read_checkpoint(found.path, manifest, set(manifest.file_by_tensor))

    def goes_on_as_if_nothing(self, expected: dict[str, torch.Tensor]) -> str:
        """Resume what was saved up to the last step; what differs, or nothing.

        What has come further than the last step is compared after one step more.
        """
        step, _ = self.read_weights()
        last = STEPS if step <= STEPS else step + 1
        resume = ("--resume", str(self.saved)) if step else ()
        whole = self.folder / "whole"
        if last > STEPS:
            expected = self._train(whole.with_name("undisturbed"), str(last))
        if step < last:
            found = self._train(whole, str(last - step), *resume)
        else:
            _, found = self.read_weights()
        if not (found and expected):
            return "cannot be resumed"
        differing = [
            name
            for name in expected.keys() | found.keys()
            if name not in found
            or name not in expected
            or not torch.equal(found[name], expected[name])
        ]
        return f"resumed at step {step}, {sorted(differing)[:3]} differ" if differing else ""

    def _train(self, folder: Path, steps: str, *options: str) -> dict[str, torch.Tensor]:
        """The weights after so many steps without a fault; none when there is one after all."""
        wishes = ("--steps", steps, "--save", str(folder), "--quiet")
        self.run(*options, *wishes, FAULT_OFF="1")
        return self.read_weights(folder)[1]

    def end(self) -> None:
        """End what a failed check has left behind."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
        for pid in list_ranks(self.plan):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path | None]:
    """A file system that soon is full; None where none can be mounted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    try:
        yield folder if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def read_only_disk(folder: Path) -> Iterator[Path | None]:
    """A file system that cannot be written, not even by root; None where none can be mounted."""
    with small_disk(folder, "1m") as disk:
        if disk is not None:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk
