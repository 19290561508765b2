"""How faults are brought about, and what must come of them: verbs for `tools/fault_cases.py`."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from graphplan.files import read_noun
from graphplan.nouns.base import Noun
from graphplan.nouns.plan import Plan
from graphplan.referee import check_plan
from tests.processes.killing import kill_while_saving
from tests.processes.test_faults import list_ranks
from tools.fault_scene import STEPS, Outcome, Scene, read_only_disk, small_disk

EVERY_STEP = ("--steps", str(STEPS), "--save-every", "1", "--save")
FOREVER = ("--steps", "100000000")
NUM_POWER_CUTS = 200
NUM_INTERRUPTS = 20
MOST_KILLS = 30
NEWEST = "step-00000003"


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
        run = scene.start(*FOREVER, "--save-every", "1", "--save", str(scene.saved))
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


def pause(seconds: float, *, everybody: bool) -> Callable[[Scene], Row]:
    """Stop the launcher, which ranks do not need, or all of the run, as a job that is suspended."""

    def act(scene: Scene) -> Row:
        run = scene.start("--steps", "300")
        scene.wait_for_step(run)
        pids = [run.pid, *(list_ranks(scene.plan) if everybody else ())]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds if number == signal.SIGSTOP else 0.0)
        return judge(scene.finish(run, since=time.time()), code=0, told="300 steps on 2 ranks")

    return act


def interrupt_often(scene: Scene) -> Row:
    """Ctrl-C at random moments from the start on, also twice: never a traceback, nobody is left."""
    rng, wrong, codes = random.Random(0), [], set()
    for _ in range(NUM_INTERRUPTS):
        run = scene.start("--steps", "200", "--save-every", "1", "--save", str(scene.saved))
        time.sleep(rng.uniform(0.3, 8.0))
        for _ in range(rng.randrange(1, 3)):
            run.send_signal(signal.SIGINT)
            time.sleep(rng.uniform(0.0, 0.3))
        done = scene.finish(run, since=time.time())
        codes.add(done.code)
        # The second one may come when Python is about to end, and has no handler any more.
        is_odd = done.code not in (0, 130, -signal.SIGINT) or "Traceback" in done.errors
        # The first one may come before a line of ours, while Python itself starts.
        if is_odd and "__main__.py" in done.errors:
            wrong.append(f"exit code {done.code}: {done.errors[-400:]}")
    told = f"{NUM_INTERRUPTS} times, exit codes {sorted(codes)}"
    return Row(done.seconds, done.code, told, tuple(wrong))


def cut_runs(scene: Scene) -> Row:
    """kill -9 of launcher and ranks at random moments of a run that saves, until it is through."""
    rng, num_kills, step = random.Random(0), 0, 0
    while step < STEPS and num_kills < MOST_KILLS:
        resume = ("--resume", str(scene.saved)) if step else ()
        wishes = ("--steps", str(STEPS - step), "--save-every", "1", "--save", str(scene.saved))
        run = scene.start(*resume, *wishes)
        scene.wait_for_step(run)
        time.sleep(rng.uniform(0.0, 0.05))
        for pid in rng.sample([run.pid, *list_ranks(scene.plan)], 3):
            os.kill(pid, signal.SIGKILL)
        scene.finish(run, since=time.time())
        num_kills, step = num_kills + 1, scene.read_weights()[0]
    return Row(math.nan, 0, f"{num_kills} kills, {step} of {STEPS} steps saved", ())


def write_nowhere(scene: Scene) -> Row:
    """The disk of the log is full."""
    done = scene.run("--steps", "3", limits="exec > /dev/full")
    return judge(done, code=1, told="output of the run cannot be written: No space left")


def fill_temporary(scene: Scene) -> Row:
    """The folder in which ranks meet has no room."""
    with small_disk(scene.folder / "disk", "64k") as disk:
        if disk is None:
            return Row(math.nan, 0, "", ("no file system can be mounted here",))
        return judge(scene.run("--steps", "3", TMPDIR=str(disk)), code=1, told="No folder can be")


def leave_link(scene: Scene) -> Row:
    """Somebody has put links to a file of the user where runs write."""
    first = scene.run("--steps", "3", "--save-every", "1", "--save", str(scene.saved))
    assert first.code == 0, first.errors
    precious = scene.folder / "precious"
    precious.write_text("precious")
    for name in (".trial-0000", ".trial-0001", ".latest.new", ".step-00000004"):
        (scene.saved / name).symlink_to(precious)
    saved = str(scene.saved)
    row = judge(scene.run("--resume", saved, "--steps", "1", "--save", saved), code=0, told="")
    lost = () if precious.read_text() == "precious" else ("a foreign file was written",)
    return Row(row.seconds, row.code, row.told, row.wrong + lost)


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
        shutil.copytree(saved, scene.saved)
        return Row(row.seconds, row.code, row.told, row.wrong + lost)


def take_ports(scene: Scene) -> Row:
    """Somebody else listens where rendezvous usually are."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
        return ends_well()(scene)


def interrupt(
    words: tuple[str, ...], kind: type[Noun], *, moments_s: tuple[float, ...]
) -> Callable[[Scene], Row]:
    """Ctrl-C in another command than run, at several moments: an end without a traceback.

    What is interrupted gives what it has, whole, or nothing.
    """

    def act(scene: Scene) -> Row:
        wrong, given, seconds = [], 0, 0.0
        for when_s in moments_s:
            place = scene.folder / f"{when_s}.json"
            process = scene.call([*words, "-o", str(place)])
            time.sleep(when_s)
            process.send_signal(signal.SIGINT)
            done = scene.finish(process, since=time.time())
            given, seconds = given + (done.code == 0), max(seconds, done.seconds)
            if done.code == 0:
                found = read_noun(place, kind)
                if isinstance(found, Plan) and check_plan(found).violations:
                    wrong.append(f"{place.name} is no legal plan")
            elif done.code != 130 or done.errors.strip() != "Interrupted.":
                wrong.append(f"after {when_s} s: exit code {done.code}, {done.errors[-300:]}")
        told = f"{len(moments_s)} moments; {given} times the best until then, whole, else nothing"
        return Row(seconds, 130, told, tuple(wrong))

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
    """kill -9 of two ranks at random moments of saving."""
    rng = random.Random(0)
    tally = kill_while_saving(scene.folder, num_kills=NUM_POWER_CUTS, rng=rng, num_ranks=2)
    told = (
        f"{NUM_POWER_CUTS} kills, {tally.torn} in a half-written checkpoint, {tally.fell_back} with"
        f" a torn `latest`; {tally.found} times the last one was whole and equal"
    )
    return Row(math.nan, 0, told, ())
