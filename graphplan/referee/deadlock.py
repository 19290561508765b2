"""Rule `deadlock`: the program runs to its end whatever the timing.

The model is conservative, as NCCL demands: an operation is posted when all tasks in front of it
have finished, never earlier; operations between two devices in one direction complete only in the
order in which both ends posted them; an all-reduce needs all replicas at once.

An operation that waits for another stays possible when others happen first, so one run without
times decides: if it ends, every run ends; if it stops, the waits of the stopped devices hold a
cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.schedule import Program
from graphplan.nouns.task import Instruction, Task, Transfer
from graphplan.referee.ground import Ground
from graphplan.referee.verdict import Findings

Link = tuple[int, int]


def judge_deadlock(ground: Ground, program: Program, findings: Findings) -> None:
    """Both ends of every link agree on an order, and no devices wait for each other in a circle."""
    if _judge_link_order(ground, program, findings):
        run = _Run(ground, program)
        run.finish()
        run.judge(findings)


def _judge_link_order(ground: Ground, program: Program, findings: Findings) -> bool:
    """Whether the operations of each link have the same order at both ends."""
    sent: dict[Link, list[Transfer]] = {}
    received: dict[Link, list[Transfer]] = {}
    for device, instructions in enumerate(program.instructions_by_device):
        for each in instructions:
            if isinstance(each, Transfer):
                key = (each.src, each.dst, device)
                for reader in ground.readers_of.get(key, ()):
                    sent.setdefault((device, reader), []).append(each)
                for sender in ground.senders_to.get(key, ()):
                    received.setdefault((sender, device), []).append(each)
    agreed = True
    for (a, b), sends in sent.items():
        receives = received.get((a, b), [])
        for one, other in zip(sends, receives, strict=False):
            if one != other:
                findings.add(
                    "deadlock",
                    f"devices {a} and {b}",
                    f"device {a} sends {one} before {other}, device {b} receives {other} before"
                    f" {one}: in-order operations wait for each other.",
                )
                agreed = False
                break
    return agreed


class _Run:
    """An execution without times: every device goes on until its next task must wait."""

    def __init__(self, ground: Ground, program: Program) -> None:
        self.ground = ground
        self.lines: Sequence[Sequence[Instruction]] = program.instructions_by_device
        self.next = [0] * len(self.lines)
        self.num_posted: dict[tuple[int, int, int, int, int], int] = {}
        """Ends that have posted a message, by (src, dst, micro-batch, sender, receiver)."""
        self.num_left: dict[tuple[int, int, int, int], int] = {}
        """Messages of a transfer that have not reached a device, by (src, dst, m, device)."""
        self.at_barrier: dict[tuple[int, int], set[int]] = {}
        self.ready = list(range(len(self.lines)))[::-1]

    def finish(self) -> None:
        """Run until no device can go on."""
        while self.ready:
            self._advance(self.ready.pop())

    def _advance(self, device: int) -> None:
        line = self.lines[device]
        position = self.next[device]
        while position < len(line):
            each = line[position]
            if isinstance(each, Transfer):
                self._post(device, each)
            elif self._must_wait(device, each):
                break
            position += 1
        self.next[device] = position

    def _must_wait(self, device: int, task: Task) -> bool:
        if task.kind == "R":
            return not self._meet(device, task)
        return self._find_wait(device, task) is not None

    def _post(self, device: int, each: Transfer) -> None:
        src, dst, m = each.src, each.dst, each.micro_batch
        for b in self.ground.readers_of.get((src, dst, device), ()):
            self._post_end(src, dst, m, device, b)
        for a in self.ground.senders_to.get((src, dst, device), ()):
            self._post_end(src, dst, m, a, device)

    def _post_end(self, src: int, dst: int, m: int, a: int, b: int) -> None:
        key = (src, dst, m, a, b)
        self.num_posted[key] = self.num_posted.get(key, 0) + 1
        if self.num_posted[key] == 2:
            # Links agree on an order and their earlier operations were posted before: it completes.
            there = (src, dst, m, b)
            left = self.num_left.get(there, len(self.ground.senders_to[src, dst, b])) - 1
            self.num_left[there] = left
            if left == 0:
                self.ready.append(b)

    def _meet(self, device: int, task: Task) -> bool:
        """Whether all replicas have reached an all-reduce; the last one wakes the others."""
        key = (task.stage, task.micro_batch)
        present = self.at_barrier.setdefault(key, set())
        devices = self.ground.priced.stages[task.stage].devices
        if device not in present:
            present.add(device)
            if len(present) == len(devices):
                self.ready += [other for other in devices if other != device]
        return len(present) == len(devices)

    def _find_wait(self, device: int, task: Task) -> tuple[int, int, int] | None:
        """A transfer (src, dst, micro-batch) that the task needs and that has not arrived."""
        if task.kind not in ("F", "B", "I"):
            return None
        ground, kind = self.ground, "F" if task.kind == "F" else "B"
        for ends in ground.senders[task.stage]:
            if ground.kind_by_ends[ends] != kind or (*ends, device) not in self.ground.senders_to:
                continue
            for m in ground.all_needed(task.stage, task.micro_batch, ends[0]):
                if self.num_left.get((*ends, m, device), 1):
                    return (*ends, m)
        return None

    def judge(self, findings: Findings) -> None:
        """Name the cycle of devices that wait for each other, if there is one."""
        stuck = [d for d, line in enumerate(self.lines) if self.next[d] < len(line)]
        if not stuck:
            return
        waits: dict[int, tuple[str, int]] = {device: self._explain(device) for device in stuck}
        path: list[int] = []
        device = stuck[0]
        while device not in path:
            path.append(device)
            device = waits[device][1]
        cycle = path[path.index(device) :]
        findings.add(
            "deadlock",
            f"device {cycle[0]}, instruction {self.next[cycle[0]]}"
            f" ({self.lines[cycle[0]][self.next[cycle[0]]]})",
            "; ".join(waits[each][0] for each in cycle)
            + f". {len(stuck)} of {len(self.lines)} devices never end.",
        )

    def _explain(self, device: int) -> tuple[str, int]:
        """What a stopped device waits for, and the device that would have to act."""
        task = self.lines[device][self.next[device]]
        assert isinstance(task, Task)
        wait = self._find_wait(device, task)
        if wait is None:
            present = self.at_barrier[task.stage, task.micro_batch]
            other = min(set(self.ground.priced.stages[task.stage].devices) - present)
            return f"device {device} waits at {task} for device {other} to join", other
        src, dst, m = wait
        kind = self.ground.kind_by_ends[src, dst]
        for a in self.ground.senders_to[src, dst, device]:
            if self.num_posted.get((src, dst, m, a, device), 0) < 2:
                behind = self.lines[a][self.next[a]] if self.next[a] < len(self.lines[a]) else "?"
                return (
                    f"device {device} waits at {task} for {src}>{dst}{kind}{m}, which device {a}"
                    f" posts behind {behind}",
                    a,
                )
        raise AssertionError("a message that both ends have posted has arrived")
