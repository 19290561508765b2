"""Searched schedules: bound, list, cpsat, auto against brute force; every answer is legal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphplan.errors import GraphplanError, InvalidOption, NoFeasiblePlan, UnknownName
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import SCHEDULES, Schedule
from graphplan.nouns.task import Kind, Task
from graphplan.referee.program import check_program, check_schedule
from graphplan.schedule.auto import FIXED, build_schedule, search_pool
from graphplan.schedule.bound import bound_schedule
from graphplan.schedule.evaluate import Evaluation, evaluate_schedule
from graphplan.schedule.greedy import build_list, slim_best
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.pool import Objective, Pool, measure_share
from graphplan.schedule.shop import make_shop, name_tasks, number_tasks
from tests.pure.strategies import chain_prices, dag_prices, priced_stages

FLUSH = WeightPolicy(name="flush")
OBJECTIVES = st.sampled_from(["makespan", "span"])


def interleave(rows: list[list[Task]]) -> Iterator[list[Task]]:
    """All orders of tasks that keep each row's order and run F before B or I before W."""
    left = [row for row in rows if row]
    if not left:
        yield []
        return
    pending = {task for row in left for task in row}
    for row in left:
        task = row[0]
        before: tuple[Kind, ...] = {"B": ("F",), "I": ("F",), "W": ("I",)}.get(task.kind, ())  # type: ignore[assignment]
        if any(Task(task.stage, kind, task.micro_batch) in pending for kind in before):
            continue
        for rest in interleave([each[1:] if each is row else each for each in left]):
            yield [task, *rest]


def all_schedules(priced: PricedStages, *, allow_split: bool) -> Iterator[Schedule]:
    """Every schedule that keeps micro-batches in order, with whole or split backwards by stage."""
    choices = [
        (True, False) if allow_split and price.needs_backward else (False,)
        for price in priced.stages
    ]
    for split in itertools.product(*choices):
        by_device = []
        for stages in priced.stages_by_device:
            rows = [
                [Task(s, kind, m) for m in range(priced.num_micro_batches(s))]
                for s in stages
                for kind in kinds_of(priced, s, split=split[s])
            ]
            by_device.append(list(interleave(rows)))
        for orders in itertools.product(*by_device):
            yield Schedule(name="brute", tasks_by_device=tuple(map(tuple, orders)))


def kinds_of(priced: PricedStages, stage: int, *, split: bool) -> tuple[Kind, ...]:
    """The kinds of tasks that a stage runs."""
    if not priced.stages[stage].needs_backward:
        return ("F",)
    return ("F", "I", "W") if split else ("F", "B")


def find_best(priced: PricedStages, objective: Objective, *, allow_split: bool) -> float:
    """The least time of all schedules that run and fit; infinity if none does."""
    best = math.inf
    for schedule in all_schedules(priced, allow_split=allow_split):
        try:
            found = evaluate_schedule(priced, schedule)
        except InvalidOption:
            continue
        if found.fits:
            best = min(best, value_of(found, objective))
    return best


def value_of(found: Evaluation, objective: Objective) -> float:
    """What an objective asks for."""
    return found.span_s if objective == "span" else found.step_s


def overhead(priced: PricedStages, seconds: float) -> PricedStages:
    """The same stages with halves that take longer than the whole."""
    stages = tuple(
        msgspec.structs.replace(each, weight_grad_s=each.weight_grad_s + seconds)
        for each in priced.stages
    )
    return msgspec.structs.replace(priced, stages=stages)


@settings(max_examples=25, deadline=None)
@given(
    priced_stages(max_stages=3, max_micro_batches=3, tight_memory=True, updates=True, frozen=True),
    OBJECTIVES,
    st.sampled_from([0.0, 1.0]),
)
def test_auto_is_optimal_and_the_bound_holds(
    priced: PricedStages, objective: Objective, extra_s: float
) -> None:
    """On small graphs auto finds and proves the brute-force optimum, and no bound exceeds it."""
    allow_split = priced.num_micro_batches(0) <= 2
    priced = overhead(priced, extra_s)
    best = find_best(priced, objective, allow_split=allow_split)
    bound = bound_schedule(priced, allow_split=allow_split)
    assert (bound.span_s if objective == "span" else bound.makespan_s) <= best * (1 + 1e-9)
    answer = build_schedule(priced, objective=objective, allow_split=allow_split, effort=5)
    assert answer.step_s == pytest.approx(best)
    assert answer.proven
    assert answer.bound_s <= best * (1 + 1e-9)


@settings(max_examples=12, deadline=None)
@given(
    st.one_of(
        priced_stages(max_stages=2, max_micro_batches=2, shared_devices=True, tight_memory=True),
        priced_stages(max_stages=3, max_micro_batches=1, shared_devices=True, tight_memory=True),
    ),
    OBJECTIVES,
)
def test_auto_is_optimal_with_shared_devices(priced: PricedStages, objective: Objective) -> None:
    """The same with several stages on a device, whole backwards."""
    assume(any(len(stages) > 1 for stages in priced.stages_by_device))
    best = find_best(priced, objective, allow_split=False)
    bound = bound_schedule(priced, allow_split=False)
    assert (bound.span_s if objective == "span" else bound.makespan_s) <= best * (1 + 1e-9)
    answer = build_schedule(priced, objective=objective, allow_split=False, effort=5)
    assert answer.step_s == pytest.approx(best)
    assert answer.proven


@settings(max_examples=25, deadline=None)
@given(
    priced_stages(max_stages=6, max_micro_batches=6, updates=True, replicas=True, mixed_sizes=True),
    st.booleans(),
)
def test_no_schedule_beats_the_bound(priced: PricedStages, allow_split: bool) -> None:
    """The bound holds for every built-in schedule, with replicas and unequal micro-batches too."""
    bound = bound_schedule(priced, allow_split=allow_split)
    for name in ("gpipe", "1f1b", "kfkb", "zero-bubble"):
        if name == "zero-bubble" and not allow_split:
            continue
        try:
            answer = build_schedule(priced, name=name)
        except InvalidOption:
            continue
        found = evaluate_schedule(priced, answer.schedule)
        assert bound.makespan_s <= found.step_s * (1 + 1e-9)
        assert bound.span_s <= found.span_s * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    priced_stages(
        max_stages=5,
        max_micro_batches=4,
        replicas=True,
        shared_devices=True,
        mixed_sizes=True,
        frozen=True,
        updates=True,
    ),
    st.sampled_from([name for name in SCHEDULES if name not in ("cpsat", "auto")]),
)
def test_every_schedule_is_legal(priced: PricedStages, name: str) -> None:
    """What is built passes the referee, as a schedule and as a lowered program."""
    try:
        answer = build_schedule(priced, name=name, effort=1.0)
    except InvalidOption:
        return
    verdict = check_schedule(priced, answer.schedule)
    assert verdict.is_legal, str(verdict)
    program = lower_schedule(priced, answer.schedule, FLUSH)
    verdict = check_program(priced, program, FLUSH)
    assert verdict.is_legal, str(verdict)


@settings(max_examples=15, deadline=None)
@given(
    priced_stages(max_stages=5, max_micro_batches=4, shared_devices=True, tight_memory=True),
    OBJECTIVES,
)
def test_auto_answers_are_legal(priced: PricedStages, objective: Objective) -> None:
    """auto's schedule is legal, fits, has the time it claims, and is no worse than any other."""
    answer = build_schedule(priced, objective=objective, effort=0.5)
    assert check_schedule(priced, answer.schedule).is_legal
    found = evaluate_schedule(priced, answer.schedule)
    assert found.fits
    assert value_of(found, objective) == pytest.approx(answer.step_s)
    assert answer.bound_s <= answer.step_s
    for name in ("gpipe", "1f1b", "interleaved", "zero-bubble"):
        try:
            other = build_schedule(priced, name=name, objective=objective)
        except GraphplanError:
            continue
        assert answer.step_s <= other.step_s * (1 + 1e-6)


@settings(max_examples=12, deadline=None)
@given(priced_stages(max_stages=5, max_micro_batches=5, updates=True))
def test_times_scale(priced: PricedStages) -> None:
    """Doubling all times doubles bound and makespan, and keeps the order."""
    stages = tuple(
        msgspec.structs.replace(
            each,
            forward_s=2 * each.forward_s,
            backward_s=2 * each.backward_s,
            input_grad_s=2 * each.input_grad_s,
            weight_grad_s=2 * each.weight_grad_s,
            reduce_s=2 * each.reduce_s,
            update_s=2 * each.update_s,
        )
        for each in priced.stages
    )
    transfers = tuple(
        msgspec.structs.replace(
            each,
            messages=tuple(
                msgspec.structs.replace(m, seconds=2 * m.seconds, latency_s=2 * m.latency_s)
                for m in each.messages
            ),
        )
        for each in priced.transfers
    )
    doubled = msgspec.structs.replace(priced, stages=stages, transfers=transfers)
    assert bound_schedule(doubled).makespan_s == 2 * bound_schedule(priced).makespan_s
    schedule = build_list(priced, num_rounds=3)
    assert build_list(doubled, num_rounds=3) == schedule
    once, twice = (evaluate_schedule(each, schedule).step_s for each in (priced, doubled))
    assert twice == 2 * once


@settings(max_examples=25, deadline=None)
@given(priced_stages(max_stages=6, max_micro_batches=6, updates=True))
def test_makespan_covers_work_and_path(priced: PricedStages) -> None:
    """A makespan is at least the busiest device's work and the longest chain of one micro-batch."""
    found = evaluate_schedule(priced, build_1f1b(priced))
    count = priced.num_micro_batches(0)
    work = [count * (p.forward_s + p.backward_s) + p.update_s for p in priced.stages]
    assert found.step_s >= max(work)
    ahead = [0.0] * len(priced.stages)
    for a, b in priced.edges:
        delay = sum(m.seconds + m.latency_s for m in priced.transfer_by_ends[a, b].messages)
        ahead[b] = max(ahead[b], ahead[a] + priced.stages[a].forward_s + delay)
    assert found.step_s >= max(a + p.forward_s for a, p in zip(ahead, priced.stages, strict=True))


def test_more_memory_never_hurts() -> None:
    """Room for one, two and four micro-batches: never slower, at last proven faster."""
    edges = [(0, 2), (1, 2), (2, 3)]
    answers = [
        build_schedule(
            dag_prices(
                edges,
                6,
                forward_s=[1, 2, 1, 2],
                backward_s=[2, 2, 3, 4],
                transfer_s=1.0,
                memory_bytes=memory,
            ),
            effort=4,
        )
        for memory in (2, 4, 8)
    ]
    assert all(answer.proven for answer in answers)
    assert answers[0].step_s > answers[1].step_s > answers[2].step_s


def test_the_search_is_reproducible() -> None:
    """Equal input gives equal schedules."""
    priced = chain_prices(
        5, 6, forward_s=[1, 1.3, 0.7, 1.1, 0.9], backward_s=[2, 2.2, 1.5, 2.1, 2], transfer_s=0.1
    )
    first = build_schedule(priced, effort=1.0, seed=3)
    assert build_schedule(priced, effort=1.0, seed=3) == first


def test_whole_backwards_win_ties() -> None:
    """Where 1F1B is optimal, auto keeps it, whole backwards and all."""
    answer = build_schedule(chain_prices(1, 4))
    assert (answer.schedule.name, answer.proven, answer.gap) == ("1f1b", True, 0.0)


def test_too_little_memory_is_no_plan() -> None:
    """Memory for less than one micro-batch is an error that names the stage and the numbers."""
    with pytest.raises(NoFeasiblePlan, match="Stage 0 needs 2 bytes"):
        build_schedule(chain_prices(2, 2, memory_bytes=1))
    with pytest.raises(NoFeasiblePlan, match="gpipe needs 8 bytes on device 0, which has 6"):
        build_schedule(chain_prices(2, 4, memory_bytes=6), name="gpipe")


def test_tight_memory_on_shared_devices_does_not_block() -> None:
    """Forwards of a device's first stage once took all memory, so that its later stages, which
    their backwards wait for, never ran."""
    priced = chain_prices(12, 8, devices=[(s % 4,) for s in range(12)], memory_bytes=24)
    for name in ("zero-bubble", "interleaved", "list"):
        answer = build_schedule(priced, name=name, effort=1.0)
        assert check_schedule(priced, answer.schedule).is_legal


def test_zero_bubble_needs_the_split() -> None:
    """Where backwards must stay whole, zero-bubble is refused."""
    with pytest.raises(InvalidOption, match="splits every backward"):
        build_schedule(chain_prices(2, 2), name="zero-bubble", allow_split=False)


def test_unknown_schedules_are_named() -> None:
    """A misspelt schedule is an error with the right spelling."""
    with pytest.raises(UnknownName, match="zero-bubble"):
        build_schedule(chain_prices(1, 1), name="zero-buble")


@settings(max_examples=40, deadline=None)
@given(priced_stages(max_stages=4, max_micro_batches=8, updates=True))
def test_slimmer_orders_take_no_longer(priced: PricedStages) -> None:
    """Slimming keeps the makespan and never needs more memory."""
    try:
        bound_s = bound_schedule(priced).makespan_s
        pool = Pool(make_shop(priced), "makespan", bound_s)
        search_pool(pool, allow_split=True, effort=0.05, seed=0)
    except GraphplanError:
        assume(False)
    before = pool.best
    assume(before is not None)
    assert before is not None
    slim_best(pool, allow_split=True)
    after = pool.best
    assert after is not None
    assert after.value_s <= before.value_s * (1 + 1e-5)
    share = measure_share(pool.shop, before.orders, pool.shop.kinds_for(before.split))
    assert measure_share(pool.shop, after.orders, pool.shop.kinds_for(after.split)) <= share


def test_a_pipeline_with_room_keeps_few_micro_batches_in_flight() -> None:
    """One stage on its own device: 1 micro-batch in flight is as fast as all 16."""
    priced = chain_prices(1, 16, memory_bytes=64)
    pool = Pool(make_shop(priced), "makespan", bound_schedule(priced).makespan_s)
    gpipe = FIXED["gpipe"](priced)
    pool.offer(number_tasks(pool.shop, gpipe)[0], (False,), name="gpipe")
    assert pool.best is not None
    before = evaluate_schedule(priced, gpipe).peak_bytes_by_device
    slim_best(pool, allow_split=False)
    slim = name_tasks(
        pool.shop, pool.best.orders, pool.shop.kinds_for(pool.best.split), name="list"
    )
    after = evaluate_schedule(priced, slim)
    assert after.step_s == pytest.approx(evaluate_schedule(priced, gpipe).step_s)
    assert after.peak_bytes_by_device < before
