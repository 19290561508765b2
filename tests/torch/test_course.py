"""Streams in which updates meet: in which order devices go, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from graphplan.nouns.task import Task
from graphplan_runtime.streams.course import Course
from graphplan_runtime.streams.walks import Join, Meet, Move, Walk
from tests.processes.training import Setup, capture_case, plan_case

NUM_BATCHES = 6


def make_course(policy: Any, *, meets: int, **options: Any) -> Course:
    """The course of four stages in a chain, 16 micro-batches a batch."""
    setup = Setup(
        case="chain",
        batch_size=16,
        micro_batch_size=1,
        policy=policy,
        **{"devices": [(0,), (1,), (2,), (3,)], **options},
    )
    plan = plan_case(setup, capture_case("chain"))
    return Course(plan, meets=meets)


def count_ticks(course: Course) -> int:
    """Ticks of all batches and the drain, when every F and B takes one and all else takes none."""
    devices = range(len({d for s in course.plan.stages.stages for d in s.devices}))
    walks = {d: course.start_walk(d, 0) for d in devices}
    ticks = 0
    while any(walk.peek(NUM_BATCHES, drains=True) for walk in walks.values()):
        before = {d: (dict(w.done), w.num_issued, w.num_met) for d, w in walks.items()}
        for walk in walks.values():
            spend_tick(course, walk, before)
        ticks += 1
        assert ticks < 10_000, "nobody moves"
    return ticks


def spend_tick(course: Course, walk: Walk, before: dict[int, Any]) -> None:
    """Go on with one device, on what all of them had done before the tick."""
    while (move := walk.peek(NUM_BATCHES, drains=True)) and is_free(course, move, before):
        walk.take(move)
        if not isinstance(move, (Join, Meet)):
            return


def is_free(course: Course, move: Move, before: dict[int, Any]) -> bool:
    """Whether what a move needs had been done."""
    if isinstance(move, Meet):
        return all(issued > move.update for _, issued, _ in before.values())
    if isinstance(move, Join):
        assert course.meeting is not None
        met = 2 if course.meeting.is_twofold else 1
        return all(each[met] > move.update for each in before.values())
    task, i = move.instruction, move.batch * course.count + move.instruction.micro_batch
    assert isinstance(task, Task)
    other = task.stage - 1 if task.kind == "F" else task.stage + 1
    done = [each for each, _, _ in before.values() if (other, task.kind) in each]
    return not done or done[0][other, task.kind] > i


@pytest.mark.parametrize("meets", [1, 2])
def test_2bw_does_not_wait_where_updates_meet(meets: int) -> None:
    """Its updates are first used a whole update later: a norm costs no tick, under stash it does.

    When sums of tied gradients come first, there are two talks in that time.
    """
    options = {"policy_options": {"accumulate": 8}}
    free, met = (count_ticks(make_course("2bw", meets=n, **options)) for n in (0, meets))
    assert free == 2 * 16 * NUM_BATCHES + 6
    assert met == free + meets  # of the last update, when everything else has ended
    slow = count_ticks(make_course("stash", meets=meets, **options))
    assert slow > 1.15 * free


@pytest.mark.parametrize("policy", ["stash", "2bw", "predict"])
@pytest.mark.parametrize("devices", [[(0,), (1,), (0,), (1,)], [(0,), (0,), (1,), (1,)]], ids=str)
@pytest.mark.parametrize("meets", [0, 1, 2])
def test_shared_devices_come_to_an_end(policy: Any, devices: Any, meets: int) -> None:
    """Every order ends, and every slice only needs batches that have come."""
    course = make_course(policy, meets=meets, devices=devices)
    walks = [course.start_walk(d, 0) for d in (0, 1)]
    count_ticks(course)
    for num_fed in range(1, NUM_BATCHES):
        for device, walk in enumerate(walks):
            while walk.num_moves < course.count_moves(device, num_fed):
                move = walk.peek(num_fed)
                assert move is not None
                walk.take(move)
            assert min(walk.done.values()) >= (num_fed - course.lag) * course.count
        for walk in walks:
            if meets:
                assert (walk.num_issued or 0) >= course.count_issued(num_fed)
                assert walk.num_joined <= course.count_issued(num_fed)
