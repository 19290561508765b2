"""Schedule and Program: the ordered tasks of every device, without and with their transfers."""

from __future__ import annotations

from graphplan.nouns.base import Noun
from graphplan.nouns.task import Instruction, Task, parse_instruction, parse_task

SCHEDULES = (
    "1f1b",
    "gpipe",
    "kfkb",
    "interleaved",
    "zero-bubble",
    "list",
    "cpsat",
    "modulo",
    "auto",
)
"""Names of the orders that can be asked for; the last three and `list` are searched for."""


class Schedule(Noun, frozen=True, kw_only=True):
    """Compute only: kinds F, B, I, W. The devices of a replicated stage have equal lists."""

    name: str
    tasks_by_device: tuple[tuple[Task, ...], ...]

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, tasks)) for tasks in self.tasks_by_device)


class Program(Noun, frozen=True, kw_only=True):
    """What each device executes: a schedule lowered to transfers, reductions and updates.

    A device runs its tasks one after the other in this order. A transfer in the list is *posted*
    there without waiting; a task waits for the transfers that it needs. Between two devices, the
    transfers of one direction complete in the order in which both ends posted them.
    """

    instructions_by_device: tuple[tuple[Instruction, ...], ...]

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, each)) for each in self.instructions_by_device)


def parse_schedule(text: str, *, name: str) -> Schedule:
    """The schedule that prints as `text`: one line for each device."""
    lines = text.split("\n")
    return Schedule(
        name=name, tasks_by_device=tuple(tuple(map(parse_task, line.split())) for line in lines)
    )


def parse_program(text: str) -> Program:
    """The program that prints as `text`: one line for each device."""
    lines = text.split("\n")
    return Program(
        instructions_by_device=tuple(tuple(map(parse_instruction, line.split())) for line in lines)
    )
