"""check_program, check_schedule: the order of every device, judged against its prices.

Families of rules are judged from the ground up; where one is broken, those that build on it are
left out, because they would only repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule
from graphplan.nouns.task import Instruction
from graphplan.referee.deadlock import judge_deadlock
from graphplan.referee.ground import Ground
from graphplan.referee.lines import (
    Line,
    judge_local_order,
    judge_tasks,
    judge_transfers,
    read_line,
)
from graphplan.referee.memory import judge_memory
from graphplan.referee.prices import judge_prices
from graphplan.referee.progress import judge_progress
from graphplan.referee.updates import judge_policy, judge_updates
from graphplan.referee.verdict import Findings, Verdict


def check_program(priced: PricedStages, program: Program, policy: WeightPolicy) -> Verdict:
    """Judge a program: tasks, transfers, updates, versions, deadlock, memory."""
    findings = Findings()
    judge_prices(priced, findings)
    if findings.is_clean:
        judge_program(priced, program, policy, findings)
    return findings.conclude()


def check_schedule(priced: PricedStages, schedule: Schedule) -> Verdict:
    """Judge a compute-only schedule: its tasks, their order, that no device waits for ever when
    transfers take place by themselves, and memory."""
    findings = Findings()
    judge_prices(priced, findings)
    program = Program(instructions_by_device=schedule.tasks_by_device)
    if not (findings.is_clean and _has_all_lines(priced, program, findings)):
        return findings.conclude()
    ground = Ground(priced)
    for device in _pick_devices(ground, program, findings):
        line = read_line(ground, device, schedule.tasks_by_device[device], findings)
        for stage in priced.stages_by_device[device]:
            _refuse_updates(line, stage, findings)
            judge_tasks(ground, line, stage, findings)
            judge_local_order(ground, line, stage, findings)
    if findings.is_clean:
        judge_progress(ground, schedule, findings)
        judge_memory(priced, program, findings)
    return findings.conclude()


def judge_program(
    priced: PricedStages,
    program: Program,
    policy: WeightPolicy,
    findings: Findings,
    *,
    predicted_bytes: Sequence[int] | None = None,
) -> None:
    """All rules for programs on sane prices; the replay's peaks must equal `predicted_bytes`."""
    if not _has_all_lines(priced, program, findings):
        return
    ground = Ground(priced)
    of_policy = Findings()
    judge_policy(priced, policy, of_policy)
    for device in _pick_devices(ground, program, findings):
        line = read_line(ground, device, program.instructions_by_device[device], findings)
        for stage in priced.stages_by_device[device]:
            judge_tasks(ground, line, stage, findings)
            judge_local_order(ground, line, stage, findings)
            judge_transfers(ground, line, stage, findings)
            if of_policy.is_clean:
                judge_updates(ground, line, stage, policy, findings)
    if findings.is_clean:
        judge_deadlock(ground, program, findings)
        judge_memory(priced, program, findings, predicted=predicted_bytes)
    findings.extend(of_policy)


def _has_all_lines(priced: PricedStages, program: Program, findings: Findings) -> bool:
    num_lines, num_devices = len(program.instructions_by_device), len(priced.memory_bytes_by_device)
    if num_lines != num_devices:
        findings.add("program-text", "program", f"{num_lines} lines for {num_devices} devices.")
    return num_lines == num_devices


def _pick_devices(ground: Ground, program: Program, findings: Findings) -> list[int]:
    """One device of each group of replicas, after comparing their lines, and all idle devices."""
    lines = program.instructions_by_device
    chosen = []
    for device, stages in enumerate(ground.priced.stages_by_device):
        first = ground.priced.stages[stages[0]].devices[0] if stages else device
        if first == device:
            chosen.append(device)
        elif lines[first] != lines[device]:
            findings.add(
                "replica-lines", f"device {device}", _find_difference(lines, first, device)
            )
    return chosen


def _find_difference(lines: Sequence[Sequence[Instruction]], first: int, device: int) -> str:
    for position, (one, other) in enumerate(zip(lines[first], lines[device], strict=False)):
        if one != other:
            return f"instruction {position} is {other}; its replica, device {first}, has {one}."
    return (
        f"{len(lines[device])} instructions; its replica, device {first}, has {len(lines[first])}."
    )


def _refuse_updates(line: Line, stage: int, findings: Findings) -> None:
    for kind in ("R", "U"):
        for m, position in line.tasks[stage][kind].items():
            findings.add(
                "foreign", line.place(position, f"{stage}{kind}{m}"), "a schedule is compute only."
            )
