"""Rules for one device's line: its tasks and transfers are there once, in a legal order.

Per stage and micro-batch: F, then B or I, and W behind its I; forwards in the order of the
micro-batches, and backwards too (C4 of GraphPipe, arXiv 2406.17145). A send stands behind the task
that makes its tensor, a receive in front of the first task that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan.referee.ground import Ends, Ground
from graphplan.referee.verdict import Findings

Positions = dict[int, int]
"""Micro-batch -> position in the line."""


class Line:
    """Where everything stands in a device's list."""

    def __init__(self, device: int, stages: Iterable[int]) -> None:
        self.device = device
        self.tasks: dict[int, dict[str, Positions]] = {
            stage: {kind: {} for kind in "FBIWRU"} for stage in stages
        }
        self.transfers: dict[Ends, Positions] = {}

    def place(self, position: int, instruction: object) -> str:
        """How messages name a place in the line."""
        return f"device {self.device}, instruction {position} ({instruction})"


def read_line(
    ground: Ground, device: int, instructions: Sequence[Instruction], findings: Findings
) -> Line:
    """The positions of a line, after naming what does not belong there or is there twice."""
    hosted = set(ground.priced.stages_by_device[device])
    line = Line(device, hosted)
    for position, each in enumerate(instructions):
        if isinstance(each, Task):
            problem = _find_task_problem(ground, hosted, each)
            positions = line.tasks[each.stage][each.kind] if not problem else {}
        else:
            problem = _find_transfer_problem(ground, hosted, each)
            positions = line.transfers.setdefault((each.src, each.dst), {}) if not problem else {}
        if problem:
            findings.add("foreign", line.place(position, each), problem)
        elif each.micro_batch in positions:
            findings.add(
                "task-once" if isinstance(each, Task) else "transfer-ends",
                line.place(position, each),
                f"is already instruction {positions[each.micro_batch]}.",
            )
        else:
            positions[each.micro_batch] = position
    return line


def _find_task_problem(ground: Ground, hosted: set[int], task: Task) -> str | None:
    if task.stage not in hosted:
        return f"the device does not host stage {task.stage}, only {sorted(hosted)}."
    if not 0 <= task.micro_batch < ground.counts[task.stage]:
        return f"stage {task.stage} has {ground.counts[task.stage]} micro-batches."
    if task.kind != "F" and not ground.priced.stages[task.stage].needs_backward:
        return f"stage {task.stage} runs no backward and has nothing to update."
    return None


def _find_transfer_problem(ground: Ground, hosted: set[int], each: Transfer) -> str | None:
    if each.src not in hosted and each.dst not in hosted:
        return f"the device hosts neither end, only stages {sorted(hosted)}."
    if ground.kind_by_ends.get((each.src, each.dst)) != each.kind:
        return "no edge between different devices needs this transfer."
    if not 0 <= each.micro_batch < ground.counts[each.src]:
        return f"stage {each.src} has {ground.counts[each.src]} micro-batches."
    return None


def judge_tasks(ground: Ground, line: Line, stage: int, findings: Findings) -> None:
    """A stage's tasks are all there, and in order among themselves."""
    tasks, count = line.tasks[stage], ground.counts[stage]
    place = f"device {line.device}, stage {stage}"
    _require_all(tasks["F"].keys(), count, "task-once", place, f"{stage}F", findings)
    _judge_fifo(line, stage, "F", tasks["F"], findings)
    if not ground.priced.stages[stage].needs_backward:
        return
    both = tasks["B"].keys() & (tasks["I"].keys() | tasks["W"].keys())
    for m in sorted(both)[:1]:
        findings.add("task-once", place, f"runs {stage}B{m} and its halves I or W as well.")
    for m in sorted(tasks["W"].keys() - tasks["I"].keys())[:1]:
        findings.add("task-once", place, f"runs {stage}W{m} without {stage}I{m}.")
    for m in sorted(tasks["I"].keys() - tasks["W"].keys())[:1]:
        findings.add("task-once", place, f"runs {stage}I{m} without {stage}W{m}.")
    backward = tasks["B"] | tasks["I"]
    _require_all(backward.keys(), count, "task-once", place, f"{stage}B", findings)
    _judge_fifo(line, stage, "B or I", backward, findings)
    _require_before(line, (stage, "F", tasks["F"]), (stage, "B", backward), findings)
    _require_before(line, (stage, "I", tasks["I"]), (stage, "W", tasks["W"]), findings)


def _require_all(
    present: Collection[int], count: int, rule: str, place: str, text: str, findings: Findings
) -> None:
    """Micro-batches 0 .. count-1 are all present; counts can be huge, so nothing is enumerated."""
    if len(present) < count:
        missing = next(m for m in range(len(present) + 1) if m not in present)
        findings.add(
            rule, place, f"{text}{missing} is missing: {len(present)} of {count} are there."
        )


def _judge_fifo(
    line: Line, stage: int, kind: str, positions: Positions, findings: Findings
) -> None:
    """Micro-batches come in the order of their numbers."""
    previous = -1
    for m, position in sorted(positions.items(), key=lambda item: item[1]):
        if m < previous:
            findings.add(
                "task-order",
                f"device {line.device}, instruction {position}",
                f"stage {stage} runs {kind} of micro-batch {m} after that of {previous}.",
            )
            return
        previous = m


def _require_before(
    line: Line,
    first: tuple[int, str, Positions],
    second: tuple[int, str, Positions],
    findings: Findings,
) -> None:
    """Of every micro-batch that has both, the first comes before the second."""
    for m, position in second[2].items():
        needed = first[2].get(m, -1)
        if needed > position:
            findings.add(
                "task-order",
                f"device {line.device}, instruction {position}",
                f"{second[0]}{second[1]}{m} comes before {first[0]}{first[1]}{m}, which is"
                f" instruction {needed}.",
            )


def judge_local_order(ground: Ground, line: Line, stage: int, findings: Findings) -> None:
    """What other stages of the device make comes before what reads it.

    The last micro-batch that is needed stands for all: earlier ones come before it.
    """
    backward = line.tasks[stage]["B"] | line.tasks[stage]["I"]
    for own, others, kind in (
        (line.tasks[stage]["F"], ground.local_forward[stage], "F"),
        (backward, ground.local_backward[stage], "B"),
    ):
        for other in others:
            made = line.tasks[other][kind]
            if kind == "B":
                made = made | line.tasks[other]["I"]
            for m, position in own.items():
                last = ground.last_needed(stage, m, other)
                if made.get(last, -1) > position:
                    findings.add(
                        "task-order",
                        f"device {line.device}, instruction {position}",
                        f"{stage}{kind}{m} comes before {other}{kind}{last}, which is instruction"
                        f" {made[last]}.",
                    )


def judge_transfers(ground: Ground, line: Line, stage: int, findings: Findings) -> None:
    """Every transfer of the stage is posted, sends behind their task, receives before theirs."""
    for ends in (*ground.readers[stage], *ground.senders[stage]):
        src, dst = ends
        kind = ground.kind_by_ends[ends]
        posted = line.transfers.get(ends, {})
        place = f"device {line.device}, stage {stage}"
        count = ground.counts[src]
        _require_all(posted.keys(), count, "transfer-ends", place, f"{src}>{dst}{kind}", findings)
        tasks = line.tasks[stage]
        own = tasks["F"] if kind == "F" else tasks["B"] | tasks["I"]
        for m, position in posted.items():
            name = f"{src}>{dst}{kind}{m}"
            if stage == src and own.get(m, -1) > position:
                findings.add(
                    "transfer-order",
                    line.place(position, name),
                    f"is sent before {src}{kind}{m}, which is instruction {own[m]}.",
                )
            elif stage == dst:
                reader = ground.first_reader(src, m, dst)
                if own.get(reader, position) < position:
                    findings.add(
                        "transfer-order",
                        line.place(position, name),
                        f"is received after {dst}{kind}{reader} needs it, which is instruction"
                        f" {own[reader]}.",
                    )
