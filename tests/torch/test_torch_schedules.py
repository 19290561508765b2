"""torch.distributed.pipelining as an outside witness: its schedules here, ours there.

All of torch's names here are private API of torch 2.13; no process group is needed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch.distributed.pipelining import _schedule_visualizer as visualizer
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.stage import PipelineStage

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import Task
from graphplan.referee.program import check_program, check_schedule
from graphplan.schedule.auto import build_schedule
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.kfkb import build_kfkb
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.torchtext import format_torch_csv, parse_torch_csv
from graphplan.schedule.zerobubble import build_zero_bubble
from tests.pure.strategies import chain_prices

FLUSH = WeightPolicy(name="flush")
LOOPED = ("Interleaved1F1B", "InterleavedZeroBubble")
FOLDED = ("ZBVZeroBubble", "DualPipeV")


def torch_rows(name: str, num_ranks: int, num_micro_batches: int, stages_per_rank: int) -> str:
    """The CSV that torch writes for one of its schedules."""
    multi = name not in ("GPipe", "1F1B")
    rows = visualizer.get_schedule_ops(
        name, num_ranks, num_micro_batches, stages_per_rank if multi else None
    )
    out = io.StringIO()
    csv.writer(out).writerows(["" if a is None else str(a) for a in row] for row in rows)
    return out.getvalue()


def chain_for(schedule: Schedule, num_micro_batches: int, **options: Any) -> PricedStages:
    """A chain placed as the rows of a schedule say."""
    device_by_stage = {
        task.stage: device
        for device, tasks in enumerate(schedule.tasks_by_device)
        for task in tasks
    }
    devices = [(device_by_stage[s],) for s in range(len(device_by_stage))]
    return chain_prices(
        len(devices),
        num_micro_batches,
        devices=devices,
        backward_s=2,
        input_grad_s=1,
        weight_grad_s=1,
        **options,
    )


def assert_legal(priced: PricedStages, schedule: Schedule) -> None:
    """Both the schedule and its lowered program pass the referee."""
    verdict = check_schedule(priced, schedule)
    assert verdict.is_legal, str(verdict)
    verdict = check_program(priced, lower_schedule(priced, schedule, FLUSH), FLUSH)
    assert verdict.is_legal, str(verdict)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", ["GPipe", *LOOPED, *FOLDED])
def test_torch_schedules_are_legal_here(name: str, num_ranks: int) -> None:
    """Schedules that torch generates are read, run without deadlock and pass the referee."""
    num_micro_batches = 3 * num_ranks
    text = torch_rows(name, num_ranks, num_micro_batches, stages_per_rank=2)
    schedule = parse_torch_csv(text, name=name)
    priced = chain_for(schedule, num_micro_batches)
    assert_legal(priced, schedule)
    # As busy as the busiest device at least, and no worse than all tasks in sequence.
    stages_here = max(map(len, priced.stages_by_device))
    step_s = evaluate_schedule(priced, schedule).step_s
    assert (
        3 * stages_here * num_micro_batches <= step_s < 3 * len(priced.stages) * num_micro_batches
    )


def test_torch_1f1b_is_legal_once_its_last_rank_is_mended() -> None:
    """Schedule1F1B's export numbers the last rank's forwards from 1; torch's validator and the
    referee refuse it. Numbered from 0 it is our 1F1B and legal.

    If this fails, torch has mended it: move 1F1B to the list above.
    """
    text = torch_rows("1F1B", 4, 8, stages_per_rank=1)
    actions = {rank: parse_actions(row) for rank, row in enumerate(csv.reader(io.StringIO(text)))}
    with pytest.raises(AssertionError, match="without first running Forward"):
        torch_schedules._validate_schedule(actions, 4, 4, 8)
    exported = parse_torch_csv(text, name="1f1b")
    priced = chain_for(exported, 8)
    assert not check_schedule(priced, exported).is_legal
    *others, last = exported.tasks_by_device
    mended = tuple(
        Task(task.stage, "F", task.micro_batch - 1) if task.kind == "F" else task for task in last
    )
    schedule = Schedule(name="1f1b", tasks_by_device=(*others, mended))
    assert_legal(priced, schedule)
    assert schedule == build_1f1b(priced)


def test_torch_looped_bfs_is_read_and_refused() -> None:
    """LoopedBFS takes backwards from the last micro-batch to the first, which our rules forbid."""
    schedule = parse_torch_csv(torch_rows("LoopedBFS", 2, 4, 2), name="LoopedBFS")
    verdict = check_schedule(chain_for(schedule, 4), schedule)
    assert {violation.rule for violation in verdict.violations} == {"task-order"}


@pytest.mark.parametrize(("num_ranks", "stages_per_rank"), [(2, 2), (4, 2), (4, 3), (8, 2)])
def test_interleaved_equals_torch(num_ranks: int, stages_per_rank: int) -> None:
    """On looped chains our interleaved order is torch's, task by task."""
    count = 2 * num_ranks
    text = torch_rows("Interleaved1F1B", num_ranks, count, stages_per_rank)
    theirs = parse_torch_csv(text, name="interleaved")
    assert build_interleaved(chain_for(theirs, count)) == theirs


def test_gpipe_equals_torch() -> None:
    """Our GPipe order of a chain is torch's."""
    theirs = parse_torch_csv(torch_rows("GPipe", 4, 8, 1), name="gpipe")
    assert build_gpipe(chain_for(theirs, 8)) == theirs


def parse_actions(row: list[str]) -> list[Any]:
    """A row as torch's own parser reads it."""
    return [torch_schedules._Action.from_str(cell) for cell in row]


def load_with_torch(priced: PricedStages, text: str, path: Path) -> Any:
    """torch's custom-schedule runtime after it has read, validated and lowered the file."""
    path.write_text(text)
    num_ranks = len(priced.memory_bytes_by_device)
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod = 0, num_ranks, None
    stage.num_stages = len(priced.stages)
    make_runtime: Any = torch_schedules._PipelineScheduleRuntime
    runtime = make_runtime([stage], priced.num_micro_batches(0))
    runtime._load_csv(str(path))
    return runtime


BUILDERS: dict[str, Callable[[PricedStages], Schedule]] = {
    "gpipe": build_gpipe,
    "1f1b": build_1f1b,
    "kfkb": lambda priced: build_kfkb(priced, k=2),
    "zero-bubble": build_zero_bubble,
    "interleaved": build_interleaved,
    "list": lambda priced: build_schedule(priced, name="list").schedule,
    "modulo": lambda priced: build_schedule(priced, name="modulo").schedule,
    "auto": lambda priced: build_schedule(priced, effort=1.0).schedule,
}
SHARED = ("gpipe", "interleaved", "zero-bubble", "list", "modulo", "auto")


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("per_device", [1, 2])
def test_our_schedules_are_accepted_by_torch(name: str, per_device: int, tmp_path: Path) -> None:
    """torch reads our CSV, finds it valid, adds sends and receives, and runs it dry to the end."""
    if per_device > 1 and name not in SHARED:
        pytest.skip("one stage on a device only")
    devices = [(s % 3,) for s in range(3 * per_device)]
    forward = [1.0, 2.0, 1.5, 1.0, 0.5, 2.0][: len(devices)]
    priced = chain_prices(len(devices), 6, devices=devices, forward_s=forward, backward_s=3)
    schedule = BUILDERS[name](priced)
    text = format_torch_csv(schedule)
    assert parse_torch_csv(text, name=schedule.name) == schedule
    runtime = load_with_torch(priced, text, tmp_path / "schedule.csv")
    assert runtime.stage_index_to_group_rank == {s: s % 3 for s in range(len(devices))}
    assert_legal(priced, schedule)
    lowered = {
        rank: [a for a in actions if a.computation_type.value not in DRY_RUN_CANNOT]
        for rank, actions in runtime.pipeline_order_with_comms.items()
    }
    torch_schedules._simulate_comms_compute(lowered, lambda s: s % 3, len(devices))


DRY_RUN_CANNOT = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
