"""The doctor: what a machine has, what its links carry, and whether training in stages is right.

    look at versions and devices
    time some ops on the first device         beside what the laws of its type predict
    start a rank on every device              groups, messages, sums, orders (doctorrank.py)
    describe the cluster that was found
    train a small model in two stages         beside one process, and beside the predicted step

What fails is a finding, never the end: the next step is tried all the same, and the file that is
written tells all of it to whoever is asked for help.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch

import graphplan
from graphplan.cost.allreduce import allreduce_time
from graphplan.cost.estimate import estimate_table
from graphplan.cost.hardware import find_device_type, list_device_types, parse_cluster
from graphplan.cost.measure import measure_table
from graphplan.cost.measure_clock import find_clock, name_device_type
from graphplan.errors import GraphplanError
from graphplan.files import write_noun
from graphplan.frontend import Captured, load_model_file, trace_model_file
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.diagnosis import (
    CollectiveFigure,
    Diagnosis,
    Finding,
    GroupFigure,
    KernelFigure,
    PairFigure,
    TrainingFigure,
    Verdict,
)
from graphplan.nouns.table import ProfileTable
from graphplan.planner.options import SearchOptions
from graphplan.planner.search import search_plan
from graphplan.report.units import format_bytes, format_seconds
from graphplan_runtime.doctorrank import LONG, SHORT, Figures
from graphplan_runtime.launch import KILL_AFTER_S, private_folder, signals_raised
from graphplan_runtime.messages.doors import find_loopback

MODEL = str(Path(__file__).with_name("doctormodel.py"))
SAMPLES, STEPS = 8, 5
STEP_LIMIT_S = 60.0
"""How long a step of the ranks may go on before it counts as hanging."""
TRAINING_LIMIT_S = 300.0
KERNEL_BUDGET_S = 5.0
FAR = 1e-4
"""Differences of losses above this are no rounding; TF32 is off unless the user turned it on."""
SHARED = 0.6
"""A device that reaches less of its bandwidth while others send, too, shares a way with them."""

Step = Callable[[Diagnosis], Diagnosis]


class Doctor:
    """Examines this machine; `tell` hears every finding as it is made."""

    def __init__(self, *, kind: str, num_ranks: int, tell: Callable[[Finding], None]) -> None:
        self.kind, self.num_ranks, self.tell = kind, num_ranks, tell
        self.type_name = "cpu"
        self.cluster_text = ""
        self.table: ProfileTable | None = None
        self._captured: Captured | None = None

    def examine(self) -> Diagnosis:
        """All steps, whatever fails."""
        found = Diagnosis(
            machine=describe_machine(), device=self.kind, devices=list_devices(self.kind)
        )
        steps: tuple[tuple[str, Step], ...] = (
            ("devices", self._look_at_devices),
            ("kernels", self._time_kernels),
            ("links", self._probe_links),
            ("training", self._train),
        )
        for about, step in steps:
            try:
                found = step(found)
            except GraphplanError as error:
                found = self._add(found, about, "failed", error.message, error.remedy)
            except Exception as error:  # Whatever a driver throws is what we are here to see.
                text = f"{type(error).__name__}: {str(error).split(chr(10))[0]}"
                found = self._add(found, about, "failed", text)
        return found

    def _add(
        self, found: Diagnosis, about: str, verdict: Verdict, text: str, remedy: str = ""
    ) -> Diagnosis:
        finding = Finding(about=about, verdict=verdict, text=text, remedy=remedy)
        self.tell(finding)
        return msgspec.structs.replace(found, findings=(*found.findings, finding))

    # -- steps -----------------------------------------------------------------------------------

    def _look_at_devices(self, found: Diagnosis) -> Diagnosis:
        self.type_name = name_device_type(find_clock(self.kind))
        names = ", ".join(dict.fromkeys(found.devices))
        text = f"{len(found.devices)} x {names}"
        if self.type_name not in list_device_types():
            remedy = "Describe it in a TOML file (docs/costs.md): plans rest on its figures."
            return self._add(found, "devices", "odd", f"{text}: not among the known types", remedy)
        return self._add(found, "devices", "fine", f"{text}, planned for as {self.type_name}")

    def _time_kernels(self, found: Diagnosis) -> Diagnosis:
        captured = self._capture()
        measured = measure_table(
            captured,
            device=self.kind,
            batch_sizes=[SAMPLES],
            calibrate_sizes=(),
            budget_s=KERNEL_BUDGET_S,
            rounds=1,
        )
        self.table = measured
        predicted: dict[str, float] = {}
        if self.type_name in list_device_types():
            kind = find_device_type(self.type_name)
            table = estimate_table(captured.graph, kind, batch_sizes=[SAMPLES])
            predicted = {row.op: _sum_row(row) for row in table.rows}
        rows = sorted(measured.rows, key=_sum_row, reverse=True)
        kernels = tuple(
            KernelFigure(op=row.op, measured_s=_sum_row(row), predicted_s=predicted.get(row.op))
            for row in rows
        )
        found = msgspec.structs.replace(found, kernels=kernels)
        text = (
            f"{len(rows)} ops of a small transformer in {format_seconds(sum(map(_sum_row, rows)))}"
        )
        if not predicted:
            return self._add(found, "kernels", "left out", f"{text}; no laws to compare them with")
        ratio = sum(predicted.values()) / max(sum(map(_sum_row, rows)), 1e-12)
        verdict: Verdict = "fine" if 0.5 < ratio < 2 else "odd"
        remedy = "" if verdict == "fine" else "Plan with a table of `graphplan profile` instead."
        return self._add(found, "kernels", verdict, f"{text}, predicted {ratio:.2f} of it", remedy)

    def _probe_links(self, found: Diagnosis) -> Diagnosis:
        if self.num_ranks < 2:
            return self._add(found, "links", "left out", "one device has nobody to talk to")
        figures = run_probes(self.kind, self.num_ranks)
        pairs = tuple(_list_pairs(figures))
        crowded = LONG / max(statistics.median(each.crowd_s for each in figures), 1e-9)
        sample = figures[0]
        found = msgspec.structs.replace(
            found,
            pairs=pairs,
            crowded_bytes_per_s=crowded,
            groups=GroupFigure(
                count=sample.num_groups, seconds=sample.group_s, device_bytes=sample.group_bytes
            ),
        )
        memory = f", {format_bytes(sample.group_bytes)} each" if sample.group_bytes else ""
        text = f"{sample.num_groups} communicators a rank, {format_seconds(sample.group_s)}{memory}"
        found = self._add(found, "groups", "fine", text)
        found = self._tell_pairs(found)
        self.cluster_text = write_cluster(found, self.type_name, self.num_ranks)
        found = self._tell_sums(found, figures)
        text = "messages posted in opposite orders arrived"
        return self._add(found, "orders", "fine", text)

    def _tell_pairs(self, found: Diagnosis) -> Diagnosis:
        rates = [pair.bandwidth_bytes_per_s for pair in found.pairs]
        delays = [pair.latency_s for pair in found.pairs]
        crowded = found.crowded_bytes_per_s or 0.0
        text = (
            f"{_giga(min(rates))} to {_giga(max(rates))} GB/s between two devices"
            f" ({_giga(crowded)} when all send), {1e6 * statistics.median(delays):.0f} us"
        )
        if min(rates) < max(rates) / 3:
            slow = min(found.pairs, key=lambda pair: pair.bandwidth_bytes_per_s)
            text += f"; slowest from {slow.src} to {slow.dst}"
            remedy = "Look at the topology (nvidia-smi topo -m): paths between devices differ."
            return self._add(found, "messages", "odd", text, remedy)
        return self._add(found, "messages", "fine", text)

    def _tell_sums(self, found: Diagnosis, figures: list[Figures]) -> Diagnosis:
        cluster = parse_cluster(self.cluster_text, name="the measured cluster")
        devices = range(self.num_ranks)
        sums = tuple(
            CollectiveFigure(
                bytes=size,
                measured_s=statistics.median(each.sum_s[size] for each in figures),
                predicted_s=allreduce_time(cluster, devices, size),
            )
            for size in sorted(figures[0].sum_s)
        )
        found = msgspec.structs.replace(found, collectives=sums)
        parts = [
            f"{format_bytes(each.bytes)} in {format_seconds(each.measured_s)} (predicted"
            f" {format_seconds(each.predicted_s)})"
            for each in sums
        ]
        return self._add(found, "sums", "fine", ", ".join(parts))

    def _train(self, found: Diagnosis) -> Diagnosis:
        """Two stages where there are two devices, in processes of `graphplan run`."""
        num_stages = min(2, self.num_ranks)
        cluster = self._read_cluster(num_stages)
        options = SearchOptions(
            batch_size=SAMPLES,
            micro_batch_sizes=(SAMPLES // 4,),
            planner="equal",
            schedule="1f1b",
            precision="float32",
            baselines=False,
        )
        plan = search_plan(self._capture().graph, cluster, options)
        with private_folder() as folder:
            write_noun(plan, folder / "plan.json")
            command = [
                *(sys.executable, "-m", "graphplan", "run", str(folder / "plan.json"), MODEL),
                *("--steps", str(STEPS), "--device", self.kind, "--reference", "batch", "--json"),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TRAINING_LIMIT_S
            )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return self._add(found, "training", "failed", lines[0] if lines else "ended early")
        facts = json.loads(done.stdout)
        figure = TrainingFigure(
            num_stages=len(plan.stages.stages),
            largest_loss_difference=facts["reference"]["largest_loss_difference"],
            largest_parameter_difference=facts["reference"]["largest_parameter_difference"],
            step_s=statistics.median(facts["step_s"][1:]),
            predicted_step_s=facts["predicted_step_s"],
        )
        found = msgspec.structs.replace(found, training=figure)
        text = (
            f"{figure.num_stages} stages on as many devices, {STEPS} steps; losses within"
            f" {figure.largest_loss_difference:.1e} of one process; a step takes"
            f" {format_seconds(figure.step_s)}, predicted {format_seconds(figure.predicted_step_s)}"
        )
        if figure.largest_loss_difference > FAR:
            remedy = "This must not be: please send the file that was written."
            return self._add(found, "training", "failed", text, remedy)
        return self._add(found, "training", "fine", text)

    # -- pieces ----------------------------------------------------------------------------------

    def _capture(self) -> Captured:
        if self._captured is None:
            self._captured = trace_model_file(load_model_file(MODEL))
        return self._captured

    def _read_cluster(self, num_devices: int) -> Cluster:
        kind = self.type_name if self.type_name in list_device_types() else "a100-80gb"
        text = self.cluster_text or _format_cluster(kind, 1, 1.0, 10.0, "device")
        cluster = parse_cluster(text, name="the measured cluster")
        node = msgspec.structs.replace(
            cluster.nodes[0], devices=cluster.nodes[0].devices[:num_devices]
        )
        return msgspec.structs.replace(cluster, nodes=(node,))


def describe_machine() -> dict[str, str]:
    """Versions, by name; nothing that tells who the user is."""
    facts = {
        "graphplan": graphplan.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
    if torch.version.hip:
        facts["hip"] = torch.version.hip
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts


def list_devices(kind: str) -> tuple[str, ...]:
    """Names of the devices of a kind; a CPU has one for all ranks."""
    if kind == "cpu":
        return (find_clock("cpu").name,)
    count = torch.accelerator.device_count()
    return tuple(find_clock(f"{kind}:{index}").name for index in range(count))


def run_probes(kind: str, num_ranks: int) -> list[Figures]:
    """Start the ranks, wait for them, and say where they hang if they do."""
    command = [sys.executable, "-m", "graphplan_runtime.doctorrank"]
    here = {**os.environ, "OMP_NUM_THREADS": "1"}
    here |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), find_loopback())
    with signals_raised(), private_folder() as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(num_ranks):
                words = [*command, str(folder), str(rank), str(num_ranks), kind]
                with (folder / f"log-{rank}").open("wb") as log:
                    ranks.append(subprocess.Popen(words, env=here, stderr=log, stdout=log))
            _watch_probes(ranks, folder)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait(timeout=KILL_AFTER_S * 5)
        texts = [(folder / f"figures-{rank}").read_bytes() for rank in range(num_ranks)]
    return [msgspec.json.decode(text, type=Figures) for text in texts]


def _watch_probes(ranks: list[subprocess.Popen[bytes]], folder: Path) -> None:
    steps: list[str] = []
    since = time.monotonic()
    while any(process.poll() is None for process in ranks):
        failed = [rank for rank, process in enumerate(ranks) if process.poll()]
        if failed:
            lines = (folder / f"log-{failed[0]}").read_text(errors="replace").splitlines()
            why = lines[-1] if lines else f"exit code {ranks[failed[0]].returncode}"
            raise GraphplanError(
                f"rank {failed[0]} ended while {_name_step(steps, failed[0])}: {why}",
                remedy="NCCL_DEBUG=INFO graphplan doctor tells more; look at the log of the"
                " driver (dmesg).",
            )
        seen = [_read_step(folder, rank) for rank in range(len(ranks))]
        if seen != steps:
            steps, since = seen, time.monotonic()
        if time.monotonic() - since > STEP_LIMIT_S:
            places = ", ".join(f"rank {rank} at {step}" for rank, step in enumerate(steps))
            raise GraphplanError(
                f"no progress for {STEP_LIMIT_S:.0f} s: {places}",
                remedy="NCCL_DEBUG=INFO graphplan doctor tells more; NCCL_P2P_DISABLE=1 tries"
                " without peer access.",
            )
        time.sleep(0.05)


def _read_step(folder: Path, rank: int) -> str:
    path = folder / f"step-{rank}"
    return path.read_text() if path.exists() else "starting"


def _name_step(steps: list[str], rank: int) -> str:
    return steps[rank] if steps else "starting"


def _list_pairs(figures: list[Figures]) -> Iterator[PairFigure]:
    for src, each in enumerate(figures):
        for dst, (short_s, long_s) in sorted(each.delay_s.items()):
            rate = (LONG - SHORT) / max(long_s - short_s, 1e-9)
            yield PairFigure(src=src, dst=dst, latency_s=short_s, bandwidth_bytes_per_s=rate)


def write_cluster(found: Diagnosis, type_name: str, num_devices: int) -> str:
    """A cluster file with the measured link: of two devices that are alone on it."""
    kind = type_name if type_name in list_device_types() else "a100-80gb"
    rate = statistics.median(pair.bandwidth_bytes_per_s for pair in found.pairs)
    latency_us = 1e6 * statistics.median(pair.latency_s for pair in found.pairs)
    crowded = found.crowded_bytes_per_s or rate
    scope = "node" if num_devices > 2 and crowded < SHARED * rate else "device"
    return _format_cluster(kind, num_devices, rate / 1e9, latency_us, scope)


def _format_cluster(kind: str, count: int, rate_gb: float, latency_us: float, scope: str) -> str:
    link = f'bandwidth_gb_per_s = {rate_gb:.4g}, latency_us = {latency_us:.4g}, scope = "{scope}"'
    return f"""# Written by `graphplan doctor`: messages between two devices of one machine.

name = "measured"
title = "{count} x {kind}, links as measured"
source = "graphplan doctor {graphplan.__version__}, torch {torch.__version__}"

# Between machines: not measured, taken to be like the links inside.
[link]
bandwidth_gb_per_s = {rate_gb:.4g}
latency_us = {latency_us:.4g}
scope = "node"

[[nodes]]
count = 1
devices = {{ {kind} = {count} }}
link = {{ {link} }}
"""


def _sum_row(row: object) -> float:
    parts = ("forward_s", "input_grad_s", "weight_grad_s")
    return float(sum(getattr(row, part)[0] for part in parts))


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.3g}"
