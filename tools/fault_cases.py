"""The faults that `tools/check_faults.py` acts out, by name."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.processes.killing import kill_while_saving
from tools.fault_scene import STEPS, Outcome, Scene, read_only_disk, small_disk

EVERY_STEP = ("--steps", str(STEPS), "--save-every", "1", "--save")
FOREVER = ("--steps", "100000000")
NUM_POWER_CUTS = 200


@dataclass(frozen=True)
class Row:
    """What a fault has led to."""

    seconds: float
    code: int
    told: str
    wrong: tuple[str, ...]

    @property
    def first_line(self) -> str:
        """What the user reads first."""
        lines = self.told.strip().splitlines()
        return lines[0] if lines else ""


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


def judge(outcome: Outcome, *, code: int, told: str) -> Row:
    """Compare how a run has ended with how it should."""
    text = outcome.errors + outcome.output
    wrong = []
    if outcome.code != code:
        wrong.append(f"exit code {outcome.code} instead of {code}: {text[-400:]}")
    if not re.search(told, text):
        wrong.append(f"{told!r} is not told: {text[-400:]}")
    return Row(outcome.seconds, outcome.code, outcome.errors or outcome.output, tuple(wrong))


def in_a_task(told: str, *options: str) -> Callable[[Scene], Row]:
    """The model file commits the fault in the middle of a task of rank 1."""

    def act(scene: Scene) -> Row:
        done = scene.run(*EVERY_STEP, str(scene.saved), *options)
        return judge(done, code=1, told=rf"^Error: The run failed at rank 1 \(stage 1.*{told}")

    return act


def in_a_phase(phase: str) -> Callable[[Scene], Row]:
    """The model file hangs outside of tasks."""

    def act(scene: Scene) -> Row:
        done = scene.run(*EVERY_STEP, str(scene.saved), "--hang-timeout", "1.5")
        return judge(done, code=1, told=rf"rank 1 \({phase}\): no progress for")

    return act


def ends_well(*options: str, told: str = "", limits: str = "") -> Callable[[Scene], Row]:
    """Nothing may come of it."""

    def act(scene: Scene) -> Row:
        done = scene.run(*EVERY_STEP, str(scene.saved), *options, limits=limits)
        return judge(done, code=0, told=told)

    return act


def to_rank(number: signal.Signals, told: str) -> Callable[[Scene], Row]:
    """A signal to rank 1 in mid-training."""

    def act(scene: Scene) -> Row:
        run = scene.start(*FOREVER)
        scene.wait_for_step(run, 3)
        os.kill(scene.find_rank(1), number)
        return judge(scene.finish(run, since=time.time()), code=1, told=told)

    return act


def to_launcher(
    number: signal.Signals, *, code: int, told: str, when: float | None = None
) -> Callable[[Scene], Row]:
    """A signal to the launcher while it trains, and saves at every step."""

    def act(scene: Scene) -> Row:
        run = scene.start(*FOREVER, "--save-every", "1", "--save", str(scene.saved))
        scene.wait_for_step(run, 3)
        time.sleep(when or 0.0)
        run.send_signal(number)
        return judge(scene.finish(run, since=time.time()), code=code, told=told)

    return act


def pause_launcher(scene: Scene) -> Row:
    """The ranks do not need it."""
    run = scene.start("--steps", "300")
    scene.wait_for_step(run)
    run.send_signal(signal.SIGSTOP)
    time.sleep(12)
    run.send_signal(signal.SIGCONT)
    return judge(scene.finish(run, since=time.time()), code=0, told="300 steps on 2 ranks")


def with_checkpoint(
    spoil: Callable[[Path], None], *, code: int, told: str
) -> Callable[[Scene], Row]:
    """Three steps are saved, then somebody spoils the folder, then a run resumes."""

    def act(scene: Scene) -> Row:
        first = scene.run("--steps", "3", "--save-every", "1", "--save", str(scene.saved))
        assert first.code == 0, first.errors
        spoil(scene.saved)
        done = scene.run("--resume", str(scene.saved), "--steps", "1")
        return judge(done, code=code, told=told)

    return act


def newest(folder: Path) -> Path:
    """The checkpoint of step 3."""
    return folder / NEWEST


def flip_bit(folder: Path) -> None:
    """One bit of a tensor."""
    path = newest(folder) / "rank-0001.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    """The end of a tensor file is missing."""
    path = newest(folder) / "rank-0000.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def point_outside(folder: Path) -> None:
    """A manifest that names a file of somebody else."""
    path = newest(folder) / "manifest.json"
    tree = msgspec.json.decode(path.read_bytes())
    tree["file_by_tensor"] = dict.fromkeys(tree["file_by_tensor"], "../../../etc/passwd")
    path.write_bytes(msgspec.json.encode(tree))


def claim_shape(folder: Path) -> None:
    """A tensor of no bytes and of 2**124 rows."""
    header = {"a": {"dtype": "F32", "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]}}
    text = msgspec.json.encode(header)
    path = newest(folder) / "rank-0000.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def write_latest(content: bytes) -> Callable[[Path], None]:
    """Something else in `latest`."""

    def spoil(folder: Path) -> None:
        (folder / "latest").write_bytes(content)

    return spoil


def share_folder(scene: Scene) -> Row:
    """A second run saves where the first one does: it is refused, the first one goes on."""
    first = scene.start(*FOREVER, "--save-every", "1", "--save", str(scene.saved))
    scene.wait_for_step(first, 2)
    second = scene.start("--steps", "2", "--save", str(scene.saved))
    output, errors = second.communicate(timeout=120)
    row = judge(
        Outcome(second.returncode, output, errors, math.nan),
        code=2,
        told=f"process {first.pid}|lock",
    )
    scene.wait_for_step(first, 2)
    first.send_signal(signal.SIGINT)
    scene.finish(first)
    return row


def resume_with(*options: str, code: int, told: str) -> Callable[[Scene], Row]:
    """Resume with other options than those that it was saved with."""

    def act(scene: Scene) -> Row:
        first = scene.run("--steps", "3", "--save", str(scene.saved))
        assert first.code == 0, first.errors
        done = scene.run("--resume", str(scene.saved), "--steps", "1", *options)
        return judge(done, code=code, told=told)

    return act


def save_to(place: str, told: str) -> Callable[[Scene], Row]:
    """A folder that cannot be made: found out before training."""

    def act(scene: Scene) -> Row:
        done = scene.run("--steps", "2", "--save", place)
        row = judge(done, code=2, told=told)
        trained = ("it trained before it found out",) if "loss" in done.output else ()
        return Row(row.seconds, row.code, row.told, row.wrong + trained)

    return act


def save_read_only(scene: Scene) -> Row:
    """A file system that cannot be written."""
    with read_only_disk(scene.folder / "disk") as disk:
        place = str(disk / "saved") if disk else "/proc/graphplan"
        return save_to(place, "annot")(scene)


def fill_disk(scene: Scene) -> Row:
    """The disk is full while a checkpoint is written; those before it stay."""
    with small_disk(scene.folder / "disk", "96k") as disk:
        if disk is None:
            return Row(math.nan, 0, "", ("no file system can be mounted here",))
        saved = disk / "saved"
        wishes = ("--save-every", "1", "--save", str(saved), "--keep-last", "1000")
        row = judge(scene.run(*FOREVER, *wishes), code=1, told="No space left on device")
        step, _ = scene.read_weights(saved)
        lost = () if step else ("no whole checkpoint is left",)
        return Row(row.seconds, row.code, row.told, row.wrong + lost)


def take_ports(scene: Scene) -> Row:
    """Somebody else listens where rendezvous usually are."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
        return ends_well()(scene)


def interrupt(words: tuple[str, ...], *, after_s: float) -> Callable[[Scene], Row]:
    """Ctrl-C in another command than run: an end without a traceback."""

    def act(scene: Scene) -> Row:
        place = str(scene.folder / "out.json")
        process = scene.call([*words, "-o", place])
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        done = scene.finish(process, since=time.time())
        left = () if done.code in (0, 130) else (f"exit code {done.code}: {done.errors[-300:]}",)
        return Row(done.seconds, done.code, done.errors, left)

    return act


def train_many(scene: Scene) -> Row:
    """Sixteen ranks on however many cores there are."""
    from graphplan.files import write_noun
    from graphplan.frontend import load_model_file, trace_model_file
    from tests.processes.plans import plan_by_hand
    from tests.processes.test_faults import MODEL

    graph = trace_model_file(load_model_file(MODEL)).graph
    stages = dict.fromkeys((op.name for op in graph.ops), 0)
    devices = [tuple(range(16))]
    plan = plan_by_hand(graph, stages, devices=devices, batch_size=32, micro_batch_size=32)
    write_noun(plan, scene.folder / "plan.json")
    return judge(scene.run("--steps", "3"), code=0, told="3 steps on 16 ranks")


def cut_power(scene: Scene) -> Row:
    """kill -9 of everything at random moments of saving."""
    tally = kill_while_saving(scene.folder, num_kills=NUM_POWER_CUTS, rng=random.Random(0))
    told = (
        f"{NUM_POWER_CUTS} kills, {tally.torn} in a half-written checkpoint, {tally.fell_back} with"
        f" a torn `latest`; {tally.found} times the last one was whole and equal"
    )
    return Row(math.nan, 0, told, ())


BROKEN = "checksum|not a whole|outside of the checkpoint"
NEWEST = "step-00000003"
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
                      "hang-save", timeout_s=9, raises=True),
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
    "two-runs": Case("two runs save into one folder", share_folder),
    "seed": Case("resumed with another seed", resume_with("--seed", "7", code=0, told="seed")),
    "optimizer": Case("resumed with another optimizer",
                      resume_with("--set", "sgd=1", code=2, told="optimizer")),
    "no-folder": Case("--save where no folder can be made", save_to("/proc/graphplan", "annot")),
    "read-only": Case("--save on a read-only disk", save_read_only),
    "disk-full": Case("the disk is full in mid-save", fill_disk),
    "kill-rank": Case("SIGKILL of a rank from outside", to_rank(signal.SIGKILL, "SIGKILL")),
    "abort-rank": Case("SIGABRT of a rank", to_rank(signal.SIGABRT, "SIGABRT")),
    "stop-rank": Case("SIGSTOP of a rank from outside",
                      to_rank(signal.SIGSTOP, "no sign of life"), timeout_s=10),
    "pause-launcher": Case("SIGSTOP of the launcher for 12 s", pause_launcher),
    "term-launcher": Case("SIGTERM of the launcher",
                          to_launcher(signal.SIGTERM, code=1, told="ended by SIGTERM")),
    "kill-launcher": Case("SIGKILL of the launcher",
                          to_launcher(signal.SIGKILL, code=-9, told="")),
    "ctrl-c-run": Case("Ctrl-C in a run", to_launcher(signal.SIGINT, code=130, told="Interrupted")),
    "ctrl-c-save": Case("Ctrl-C while it saves",
                        to_launcher(signal.SIGINT, code=130, told="Interrupted", when=0.013)),
    "ctrl-c-search": Case("Ctrl-C in a search",
                          interrupt(("search", "examples/mmt.py", "--gpus", "8"), after_s=12)),
    "ctrl-c-profile": Case("Ctrl-C in a profile",
                           interrupt(("profile", "examples/gpt.py"), after_s=12)),
    "handles-48": Case("48 file descriptors", ends_well(limits="ulimit -n 48")),
    "handles-20": Case("20 file descriptors",
                       lambda scene: judge(scene.run("--steps", "2", limits="ulimit -n 20"), code=1,
                                           told="(?i)too many open files")),
    "port": Case("port 29500 is taken", take_ports, resumes=True),
    "many-ranks": Case("16 ranks", train_many),
    "power": Case(f"kill -9 at {NUM_POWER_CUTS} moments of saving", cut_power),
}  # fmt: skip
