"""torchtext: schedules to and from the text of torch.distributed.pipelining, without torch.

torch's file is a CSV with a row for each rank and actions such as `0F0`, `2I3`, `2W3` in it, which
`_PipelineScheduleRuntime._load_csv` reads (private API of torch 2.13). Blank cells are idle steps;
sends, receives and sharding actions are dropped on reading, since a schedule is compute only.
Overlapped pairs `(0F3;1B2)OVERLAP_F_B` become their parts. torch's runtime knows chains only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from graphplan.errors import InvalidFile
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import COMPUTE_KINDS, Task, parse_task

_DROPPED = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB]\d+)")
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


def format_torch_csv(schedule: Schedule) -> str:
    """The compute-only CSV; whether torch can run it is for export/gate.py to say."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        map(str, tasks) for tasks in schedule.tasks_by_device
    )
    return out.getvalue()


def parse_torch_csv(text: str, *, name: str) -> Schedule:
    """The schedule that a CSV of torch describes, ranks as devices."""
    rows = list(csv.reader(io.StringIO(text)))
    return Schedule(
        name=name,
        tasks_by_device=tuple(
            tuple(task for cell in row for task in parse_cell(cell.strip(), rank))
            for rank, row in enumerate(rows)
        ),
    )


def parse_cell(cell: str, rank: int) -> Iterator[Task]:
    """The tasks of one cell: none, one, or the two of an overlapped pair."""
    if not cell or _DROPPED.fullmatch(cell):
        return
    pair = _OVERLAP.fullmatch(cell)
    for text in pair[1].split(";") if pair else (cell,):
        try:
            task = parse_task(text.strip())
        except ValueError as error:
            raise InvalidFile(
                f"Row {rank + 1} of the schedule has {cell!r}, which is not an action of torch.",
                remedy="Actions look like 0F0, 1B2, 2I3, 2W3 or 3SEND_F1.",
            ) from error
        if task.kind not in COMPUTE_KINDS:
            raise InvalidFile(
                f"Row {rank + 1} of the schedule has {cell!r}, of a kind that torch does not have.",
                remedy="Kinds are F, B, I and W.",
            )
        yield task
