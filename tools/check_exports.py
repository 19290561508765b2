"""Open every export with the real package, and train two steps with it where a CPU can.

    python -m tools.check_exports --venvs FOLDER [--only NAME ...] [--markdown FILE]

For each package a venv is made that sees the packages of this one, so that torch stays the same,
and the package is installed with our constraints. Fourteen plans are searched and exported to every
target; what the gate refuses counts as refused, and everything else has to be opened by the package
(Megatron-Core) or to train with the gradients or weights of one process (the others, on gloo). A
package that is not there is a failure, not a skip. Takes about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tools" / "exported" / "decoder.py"
PACKAGES = {
    "megatron": ("megatron-core==0.16.1",),
    "torchtitan": ("torchtitan==0.3.0", "spmd-types"),
    "deepspeed": ("deepspeed==0.19.8",),
    "torch": (),
}
PROGRAMS = {"megatron": "megatron", "torchtitan": "titan", "deepspeed": "deepspeed"}
NEAR = 1e-5
"""Largest difference of a gradient or weight that counts as equal."""


class Case(NamedTuple):
    """A plan to search for: the model's settings and the words of the search."""

    name: str
    wishes: str
    settings: str = ""
    model: Path = MODEL


KEEP = "--keep layers.* --schedule 1f1b --planner equal"
HF_KEEP = "--keep model.model.layers.* --schedule 1f1b --planner equal"
CASES = (
    Case("chain", f"--gpus 2 {KEEP}"),
    Case("for megatron", "--gpus 2 --for megatron"),
    Case("for torchtitan", "--gpus 2 --for torchtitan"),
    Case("data parallel", "--gpus 2 --planner data-parallel"),
    Case("recomputed", f"--gpus 2 --recompute full {KEEP}"),
    Case("zero bubble", "--gpus 2 --keep layers.* --schedule zero-bubble --planner equal"),
    Case("ties", f"--gpus 2 {KEEP}", "tied=true"),
    Case("2bw", "--gpus 2 --policy 2bw --planner 2bw"),
    Case("graph", "--gpus 3 --planner graphpipe --schedule 1f1b", "hidden=32 heads=2 sequence=8"
         " branches=2 layers=2", ROOT / "examples" / "mmt.py"),
    Case("mixed precision", f"--gpus 2 --precision bfloat16 --mixed {KEEP}"),
    Case("Llama", "--gpus 2 --for megatron", "kind=llama"),
    Case("Mistral", "--gpus 2 --for megatron", "kind=mistral"),
    Case("Qwen 2", "--gpus 2 --for megatron", "kind=qwen2"),
    Case("GPT-2", "--gpus 2 --for megatron", "kind=gpt2 tied=true"),
)  # fmt: skip


def make_venv(folder: Path, target: str) -> Path:
    """The interpreter of a target's venv, made at the first call."""
    if not PACKAGES[target]:
        return Path(sys.executable)
    home = folder / target
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        site = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        seen = [path for path in sys.path if path.endswith("site-packages")]
        (site / "seen.pth").write_text("\n".join([*seen, str(ROOT)]) + "\n")
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    run([*install, *PACKAGES[target]])
    return python


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """A command with few threads; it may take five minutes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env=environment
    )


def check_case(case: Case, target: str, python: Path, folder: Path) -> str:
    """What became of a plan: refused, loaded or trained, or the failure."""
    settings = [word for each in case.settings.split() for word in ("--set", each)]
    model = [str(case.model), *settings]
    plan, exported = folder / "plan.json", folder / target
    ours = [sys.executable, "-m", "graphplan"]
    if not plan.exists():
        sizes = ["--batch", "16", "--micro-batch", "4", "--no-baselines", "--quiet"]
        done = run([*ours, "search", *model, *case.wishes.split(), *sizes, "-o", str(plan)])
        if done.returncode:
            return f"FAILED to search: {done.stderr[-300:]}"
    done = run([*ours, "export", str(plan), "--to", target, "--model", *model, "-o", str(exported)])
    if done.returncode:
        words = " ".join(done.stderr.split())
        return f"refused: {words.partition('this plan: ')[2].partition('. ')[0] or words[:160]}"
    if target == "megatron":
        return read_result(run([str(python), "-m", "tools.exported.megatron", str(exported)]))
    ranks = count_ranks(plan)
    launch = [str(python), "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={ranks}"]
    if target == "torch":
        return read_result(run([*launch, str(exported / "run.py"), "--steps", "2", "--check"]))
    return read_result(run([*launch, "-m", f"tools.exported.{PROGRAMS[target]}", str(exported)]))


def count_ranks(plan: Path) -> int:
    """Devices that a plan uses."""
    stages = json.loads(plan.read_text())["stages"]["stages"]
    return len({device for stage in stages for device in stage["devices"]})


def read_result(done: subprocess.CompletedProcess[str]) -> str:
    """The largest difference of all ranks, or what was loaded."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    records = [json.loads(line) for line in lines]
    if done.returncode or not records:
        return f"FAILED: {(done.stderr or done.stdout)[-400:]}"
    if "loaded" in records[0]:
        return f"loaded: {records[0]['loaded']}"
    found = [r.get("difference", r.get("largest_gradient_difference")) for r in records]
    worst = max(each for each in found if each is not None)
    return f"trained, {worst:.1e}" if worst < NEAR else f"FAILED: differs by {worst:.1e}"


def main() -> None:
    """Check all, print a table, and fail if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, required=True, help="Where the venvs are made.")
    parser.add_argument("--only", nargs="*", default=[], help="Names of plans.")
    parser.add_argument("--markdown", type=Path, help="Where to write the table.")
    options = parser.parse_args()
    pythons = {target: make_venv(options.venvs, target) for target in PACKAGES}
    lines = [f"| plan | {' | '.join(PACKAGES)} |", f"|---|{'---|' * len(PACKAGES)}"]
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        with TemporaryDirectory() as folder:
            cells = [check_case(case, t, python, Path(folder)) for t, python in pythons.items()]
        cells = [" ".join(cell.replace("|", "/").split()) for cell in cells]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    print(f"torch {metadata.version('torch')}")
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")
    if any("FAILED" in line for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
