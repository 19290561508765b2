"""Reports: what a run prints and writes, gathered from all ranks."""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import torch
import torch.distributed as dist

from graphplan.errors import RunFailed
from graphplan.files import write_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.task import Task, parse_task
from graphplan.nouns.timeline import Timeline
from graphplan_runtime.clocks import measure_offset
from graphplan_runtime.faults.board import Board
from graphplan_runtime.measured import make_timeline
from graphplan_runtime.messages.queues import Note
from graphplan_runtime.messages.transport import Transport
from graphplan_runtime.options import RunOptions
from graphplan_runtime.updates.weights import WeightVersions

NotesByStep = Mapping[int, list[Note]]
NOTED_STEPS = 64
"""Steps whose tasks are remembered, the last ones."""
WARN_EVERY = 100


class Ran(Protocol):
    """What has run on this rank: a Pipeline, or an Emulator."""

    plan: Plan
    transport: Transport
    rank: int
    versions: dict[int, WeightVersions]


class RunReport:
    """One rank's account of its steps."""

    def __init__(self, *, lag: int = 0, first: int = 0) -> None:
        self.lag = lag
        """By how many steps losses are late."""
        self.first = first
        """The number of the first step."""
        self.losses: list[float] = []
        self.step_s: list[float] = []
        self.drain_s = 0.0
        self.notes_by_step: dict[int, list[Note]] = {}
        self.peak_bytes = 0

    def add(self, loss: float | None, step_s: float, ended: NotesByStep) -> None:
        """A step has ended; an emulated one has no loss."""
        self.losses += [] if loss is None or self.is_late else [loss]
        self.step_s.append(step_s)
        self._note(ended)

    def _note(self, ended: NotesByStep) -> None:
        """Remember the tasks of batches that have ended, by the step that began them."""
        for step, notes in ended.items():
            self.notes_by_step[step] = notes
            self.notes_by_step.pop(step - NOTED_STEPS, None)

    @property
    def is_late(self) -> bool:
        """Whether the loss of the first batch is not known yet."""
        return len(self.step_s) < self.lag

    def end(self, losses: list[float], drain_s: float, ended: NotesByStep) -> None:
        """Nothing is in flight any more."""
        self.losses += losses
        self.drain_s = drain_s
        self._note(ended)

    def list_not_finite(self) -> list[int]:
        """Steps, counted from 1, whose loss is infinite or not a number."""
        numbered = enumerate(self.losses, self.first + 1)
        return [step for step, loss in numbered if not math.isfinite(loss)]

    def choose_step(self) -> int:
        """The remembered step of median length, the first one left out if there are others."""
        first = self.first
        known = [step for step in self.notes_by_step if step > first] or [first]
        return sorted(known, key=lambda step: self.step_s[step - first])[(len(known) - 1) // 2]


def describe_numerics() -> dict[str, str | bool]:
    """How exact this process computes, whoever has set it so."""
    return {
        "float32_products": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def measure_peak(device: torch.device) -> int:
    """The most memory that this rank used: of the device, or of the process on a CPU."""
    if device.type != "cpu":
        return int(torch.accelerator.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class RankReport(msgspec.Struct, frozen=True):
    """What a rank tells rank 0."""

    peak_bytes: int
    versions: dict[int, tuple[int, int, int]]
    """By stage: updates, the largest staleness, the most weight versions at once."""
    notes: list[tuple[str, float, float, float]]
    """Tasks of the chosen step, on the clock of rank 0."""


class WholeReport(msgspec.Struct):
    """What rank 0 knows of all ranks; `facts` is what --json prints."""

    facts: dict[str, Any]
    ranks: list[RankReport]


def collect_reports(
    report: RunReport, pipeline: Ran, board: Board, options: RunOptions
) -> WholeReport:
    """Gather all ranks' reports at rank 0; other ranks get their own only."""
    chosen = int(pipeline.transport.spread_figure(report.choose_step(), source=0))
    offset_s = measure_offset(board, pipeline.transport)
    own = RankReport(
        peak_bytes=report.peak_bytes,
        versions={
            s: (each.num_updates, each.most_stale, each.most_versions)
            for s, each in pipeline.versions.items()
        },
        notes=[
            (str(task), begin + offset_s, start + offset_s, end + offset_s)
            for task, begin, start, end in report.notes_by_step.get(chosen, [])
        ],
    )
    board.put(f"report/{pipeline.rank}", msgspec.msgpack.encode(own))
    dist.barrier()
    ranks, makespan_s = [own], 0.0
    if pipeline.rank == 0:
        num_ranks = pipeline.transport.num_ranks
        texts = [board.take(f"report/{rank}") for rank in range(num_ranks)]
        ranks = [msgspec.msgpack.decode(text, type=RankReport) for text in texts]
        timeline = join_notes(pipeline, ranks)
        makespan_s = timeline.makespan_s
        if options.timeline:
            write_noun(timeline, options.timeline)
    versions = {s: each for rank in ranks for s, each in rank.versions.items()}
    facts = {
        "losses": report.losses,
        "not_finite_steps": report.list_not_finite(),
        "step_s": report.step_s,
        "ranks": pipeline.transport.num_ranks,
        "policy": pipeline.plan.policy.name,
        "versions": [versions[s][0] for s in sorted(versions)],
        "staleness": [versions[s][1] for s in sorted(versions)],
        "weight_versions": [versions[s][2] for s in sorted(versions)],
        "peak_bytes_by_rank": [rank.peak_bytes for rank in ranks],
        "makespan_s": makespan_s,
        "predicted_step_s": pipeline.plan.prediction.step_s,
        "drain_s": report.drain_s,
        "numerics": describe_numerics(),
    }
    if options.timeline:
        facts["timeline"] = options.timeline
    return WholeReport(facts, ranks)


def join_notes(pipeline: Ran, ranks: list[RankReport]) -> Timeline:
    """The measured timeline of the chosen step."""
    notes: list[list[tuple[Task, float, float, float]]] = [
        [(parse_task(name), *times) for name, *times in rank.notes]  # type: ignore[misc]
        for rank in ranks
    ]
    return make_timeline(
        notes,
        batch_size=pipeline.plan.training.batch_size,
        peak_bytes=[rank.peak_bytes for rank in ranks],
    )


class Reporter:
    """Prints, on rank 0 only; one JSON object, or a line for each step."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self._num_watched = 0
        self._num_not_finite = 0

    def warn(self, word: str) -> None:
        """Something that the user must know, although the run goes on; never among the results."""
        sys.stderr.write(f"Warning: {word}\n")
        sys.stderr.flush()

    def watch_losses(self, report: RunReport) -> None:
        """Warn of losses that are not finite: the first one, then every 100th."""
        for index in range(self._num_watched, len(report.losses)):
            loss = report.losses[index]
            if not math.isfinite(loss):
                if self._num_not_finite % WARN_EVERY == 0:
                    self.warn(
                        f"The loss of step {report.first + index + 1} is {loss}; the run goes on."
                        " --check-finite would stop it."
                    )
                self._num_not_finite += 1
        self._num_watched = len(report.losses)

    def show_step(self, step: int, loss: float | None, step_s: float) -> None:
        """A step has ended."""
        if not (self.options.as_json or self.options.quiet):
            told = "" if loss is None else f"   loss {loss:.6f}"
            self._say(f"step {step:5d}{told}   {step_s:.3f} s")

    @staticmethod
    def _say(text: str) -> None:
        """Print at once; a run whose output is lost ends as one that fails, and can be resumed."""
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Nothing is written at the end, either.
            raise RunFailed(
                f"The output of the run cannot be written: {error.strerror}.",
                remedy="Use --quiet, or let it be written elsewhere; --resume goes on.",
            ) from error

    def finish(self, report: WholeReport, *, rank: int) -> None:
        """The run has ended."""
        if rank != 0 or self.options.quiet:
            return
        if self.options.as_json:
            # msgspec writes null for what is not finite; JSON has no NaN.
            self._say(msgspec.json.encode(report.facts).decode())
            return
        self._say("\n".join(summarise_run(report.facts)))


def summarise_run(facts: dict[str, Any]) -> list[str]:
    """The end of a run in a few lines."""
    steps = facts["step_s"][1:] or facts["step_s"]
    median = f"median {statistics.median(steps):.3f} s"
    predicted = f"predicted {facts['predicted_step_s']:.3f} s"
    lines = [f"{len(facts['step_s'])} steps on {facts['ranks']} ranks, {median}"]
    if facts["drain_s"]:
        lines[0] += f", {predicted}; drain {facts['drain_s']:.3f} s"
        lines.append(
            f"tasks of one batch: from the first to the last {facts['makespan_s']:.3f} s; updates"
            f" by stage {facts['versions']}, largest staleness {facts['staleness']}"
        )
    else:
        lines.append(
            f"tasks of one step: from the first to the last {facts['makespan_s']:.3f} s,"
            f" {predicted}"
        )
    compared = facts.get("reference")
    if compared:
        lines.append(
            f"one process on each {compared['on']}: losses differ by at most"
            f" {compared['largest_loss_difference']:.2e}, parameters by"
            f" {compared['largest_parameter_difference']:.2e}"
        )
        lines += [compared["hint"]] if compared.get("hint") else []
    if "timeline" in facts:
        lines.append(f"timeline written to {facts['timeline']}")
    return lines
