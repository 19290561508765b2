"""Rule `deadlock` for schedules without transfers: the tasks can run in the order of the lines."""

from __future__ import annotations

from typing import NamedTuple

from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.referee.ground import Ground
from graphplan.referee.verdict import Findings


class Wait(NamedTuple):
    """A task that must end first: of which stage, forward or backward, which micro-batch."""

    stage: int
    kind: str
    micro_batch: int


def judge_progress(ground: Ground, schedule: Schedule, findings: Findings) -> None:
    """Run the lines of all groups without times; stages work in the order of their micro-batches,
    so that two counters a stage say what has ended."""
    run = _Run(ground, schedule)
    run.finish()
    run.judge(findings)


class _Run:
    def __init__(self, ground: Ground, schedule: Schedule) -> None:
        self.ground = ground
        priced = ground.priced
        self.group_by_stage = [stage.devices[0] for stage in priced.stages]
        self.lines = {group: schedule.tasks_by_device[group] for group in self.group_by_stage}
        self.next = dict.fromkeys(self.lines, 0)
        self.num_done = [{"F": 0, "B": 0} for _ in priced.stages]
        self.gradients_from: list[list[int]] = [[] for _ in priced.stages]
        for src, dst in priced.backward_edges:
            self.gradients_from[src].append(dst)
        self.ready = list(self.lines)

    def finish(self) -> None:
        """Run until no group can go on."""
        while self.ready:
            group = self.ready.pop()
            line = self.lines[group]
            while self.next[group] < len(line):
                task = line[self.next[group]]
                if self.find_wait(task) is not None:
                    break
                self.next[group] += 1
                self.end(task)

    def end(self, task: Task) -> None:
        """Count a task and wake those who may have waited for it."""
        if task.kind == "W":
            return
        kind = "F" if task.kind == "F" else "B"
        self.num_done[task.stage][kind] += 1
        priced = self.ground.priced
        readers = priced.successors[task.stage] if kind == "F" else priced.predecessors[task.stage]
        self.ready += {self.group_by_stage[reader] for reader in readers}

    def find_wait(self, task: Task) -> Wait | None:
        """What a task still waits for."""
        if task.kind == "W":
            return None
        kind = "F" if task.kind == "F" else "B"
        others = (
            self.ground.priced.predecessors[task.stage]
            if kind == "F"
            else self.gradients_from[task.stage]
        )
        for other in others:
            last = self.ground.last_needed(task.stage, task.micro_batch, other)
            if self.num_done[other][kind] <= last:
                return Wait(other, kind, last)
        return None

    def judge(self, findings: Findings) -> None:
        """Name the cycle of groups that wait for each other, if there is one."""
        stuck = [group for group, line in self.lines.items() if self.next[group] < len(line)]
        if not stuck:
            return
        path: list[int] = []
        group = stuck[0]
        texts = {}
        while group not in path:
            path.append(group)
            task = self.lines[group][self.next[group]]
            wait = self.find_wait(task)
            assert wait is not None
            texts[group] = (
                f"device {group} waits at {task} for {wait.stage}{wait.kind}{wait.micro_batch}"
            )
            group = self.group_by_stage[wait.stage]
        cycle = path[path.index(group) :]
        findings.add(
            "deadlock",
            f"device {cycle[0]}, instruction {self.next[cycle[0]]}",
            "; ".join(texts[each] for each in cycle) + ".",
        )
