"""The faults that `tools/check_faults.py` acts out, by name."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from tools.fault_acts import (
    EVERY_STEP,
    NEWEST,
    NUM_POWER_CUTS,
    Row,
    claim_shape,
    cut_power,
    cut_runs,
    ends_well,
    fill_disk,
    fill_temporary,
    flip_bit,
    in_a_phase,
    in_a_task,
    interrupt,
    interrupt_often,
    judge,
    leave_link,
    pause,
    point_outside,
    resume_with,
    save_read_only,
    save_to,
    share_folder,
    take_ports,
    to_launcher,
    to_rank,
    train_many,
    truncate,
    with_checkpoint,
    write_latest,
    write_nowhere,
)
from tools.fault_scene import Scene


@dataclass(frozen=True)
class Case:
    """A fault: how to bring it about, and what must hold besides."""

    what: str
    act: Callable[[Scene], Row]
    fault: str = "none"
    settings: tuple[str, ...] = ()
    timeout_s: float = 0.0
    """What the run has to wait for before it can know."""
    resumes: bool = False
    """Whether training goes on from what was saved, equal to the bit."""
    raises: bool = False
    """Whether the fault is an error of the user's code, of which the traceback is told."""


BROKEN = "checksum|not a whole|outside of the checkpoint"
CASES: dict[str, Case] = {
    "raise": Case("a stage raises", in_a_task("ValueError: this stage is broken"), "raise",
                  resumes=True, raises=True),
    "memory": Case("a stage asks for 2**50 numbers", in_a_task("out of memory"), "memory",
                   resumes=True, raises=True),
    "infinite": Case("a value is infinite, --check-finite",
                     in_a_task("is not finite", "--check-finite"), "infinite", resumes=True),
    "kill": Case("SIGKILL of a rank by itself", in_a_task("was killed by SIGKILL"), "kill",
                 resumes=True),
    "exit": Case("a rank ends with exit code 0", in_a_task("ended early, with exit code 0"),
                 "exit", resumes=True),
    "hang": Case("a task sleeps for ever", in_a_task("no progress for"), "hang",
                 timeout_s=10, resumes=True, raises=True),
    "stop": Case("SIGSTOP of a rank", in_a_task("no sign of life for"), "stop",
                 timeout_s=10, resumes=True),
    "first-step": Case("a task of the first step sleeps for ever", in_a_task("no progress for"),
                       "hang", ("call=6",), timeout_s=10, raises=True),
    "hang-build": Case("build() sleeps for ever, --hang-timeout 1.5", in_a_phase("building"),
                       "hang-build", timeout_s=9, raises=True),
    "hang-data": Case("data() sleeps for ever, --hang-timeout 1.5", in_a_phase("reading data"),
                      "hang-data", timeout_s=9, resumes=True, raises=True),
    "hang-save": Case("saving sleeps for ever, --hang-timeout 1.5", in_a_phase("saving"),
                      "hang-save", timeout_s=9, resumes=True, raises=True),
    "model": Case("another model on one rank",
                  lambda scene: judge(scene.run(*EVERY_STEP, str(scene.saved)), code=2,
                                      told=r"rank 1 \(building\): The plan is for the"), "model"),
    "reference": Case("a reference that takes longer than the hang timeout",
                      ends_well("--reference", "batch", "--hang-timeout", "2"), "reference"),
    "clock": Case("the wall clock jumps", ends_well(), "jump", resumes=True),
    "nan-data": Case("a batch of NaN",
                     ends_well("--json", told=r'"losses": ?\[[\d., ]*null'), "nan-data"),
    "bit": Case("a bit of a saved tensor is flipped",
                with_checkpoint(flip_bit, code=2, told="checksum")),
    "truncated": Case("a tensor file is cut", with_checkpoint(truncate, code=2, told=BROKEN)),
    "foreign-path": Case("a manifest names a foreign file",
                         with_checkpoint(point_outside, code=2, told=BROKEN)),
    "giant-shape": Case("a tensor of shape [0, 2^62, 2^62]",
                        with_checkpoint(claim_shape, code=2, told=BROKEN)),
    "binary-latest": Case("`latest` is binary",
                          with_checkpoint(write_latest(b"\xff\xfe\0"), code=0, told=NEWEST)),
    "latest-outside": Case("`latest` is ../elsewhere",
                           with_checkpoint(write_latest(b"../away\n"), code=0, told=NEWEST)),
    "two-runs": Case("two runs save into one folder", share_folder, resumes=True),
    "seed": Case("resumed with another seed", resume_with("--seed", "7", code=0, told="seed")),
    "optimizer": Case("resumed with another optimizer",
                      resume_with("--set", "sgd=1", code=2, told="optimizer")),
    "no-folder": Case("--save where no folder can be made", save_to("/proc/graphplan", "annot")),
    "read-only": Case("--save on a read-only disk", save_read_only),
    "disk-full": Case("the disk is full in mid-save", fill_disk, resumes=True),
    "kill-rank": Case("SIGKILL of a rank from outside", to_rank(signal.SIGKILL, "SIGKILL"),
                      resumes=True),
    "abort-rank": Case("SIGABRT of a rank", to_rank(signal.SIGABRT, "SIGABRT"),
                       resumes=True),
    "stop-rank": Case("SIGSTOP of a rank from outside; where it saves, 60 s are allowed",
                      to_rank(signal.SIGSTOP, "no sign of life"), timeout_s=60, resumes=True),
    "pause-launcher": Case("SIGSTOP of the launcher for 12 s", pause(12, everybody=False)),
    "suspend": Case("SIGSTOP of launcher and ranks for 25 s", pause(25, everybody=True)),
    "term-launcher": Case("SIGTERM of the launcher",
                          to_launcher(signal.SIGTERM, code=1, told="ended by SIGTERM"),
                          resumes=True),
    "kill-launcher": Case("SIGKILL of the launcher",
                          to_launcher(signal.SIGKILL, code=-9, told=""), resumes=True),
    "ctrl-c-run": Case("Ctrl-C in a run", to_launcher(signal.SIGINT, code=130, told="Interrupted"),
                       resumes=True),
    "ctrl-c-save": Case("Ctrl-C while it saves",
                        to_launcher(signal.SIGINT, code=130, told="Interrupted", when=0.013),
                        resumes=True),
    "ctrl-c-often": Case("Ctrl-C at random moments, also twice", interrupt_often, resumes=True),
    "ctrl-c-search": Case("Ctrl-C in a search",
                          interrupt(("search", "examples/mmt.py", "--gpus", "8", "--effort", "100"),
                                    Plan, moments_s=(1, 4, 10, 20, 30, 50))),
    "ctrl-c-profile": Case("Ctrl-C in a profile",
                           interrupt(("profile", "examples/gpt.py", "--no-cache"), ProfileTable,
                                     moments_s=(1, 4, 8, 16, 30))),
    "handles-48": Case("48 file descriptors", ends_well(limits="ulimit -n 48")),
    "handles-20": Case("20 file descriptors",
                       lambda scene: judge(scene.run("--steps", "2", limits="ulimit -n 20"), code=2,
                                           told="(?i)too many open files")),
    "file-size": Case("no file may be over 64 KB",
                      lambda scene: judge(scene.run("--steps", "2", limits="ulimit -f 64"), code=1,
                                          told="No folder can be made for the run: .*too large")),
    "temporary-full": Case("the temporary folder is full", fill_temporary),
    "output-full": Case("the disk of the output is full", write_nowhere),
    "links": Case("links to a file of the user in the folder of --save", leave_link, resumes=True),
    "port": Case("port 29500 is taken", take_ports, resumes=True),
    "many-ranks": Case("16 ranks", train_many),
    "power": Case(f"kill -9 of two ranks at {NUM_POWER_CUTS} moments of saving", cut_power),
    "power-run": Case("kill -9 of runs that save, again and again until the last step", cut_runs,
                      resumes=True),
}  # fmt: skip
