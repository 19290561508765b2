"""Lowering: transfers, reductions and updates, in an order that cannot deadlock."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Program, Schedule, parse_program, parse_schedule
from graphplan.nouns.task import Task, Transfer
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from tests.pure.strategies import chain_prices, dag_prices, priced_stages

FLUSH = WeightPolicy(name="flush")


def test_lower_1f1b_chain() -> None:
    """Sends follow their producers and receives run ahead of their consumers."""
    priced = chain_prices(3, 3, update_s=1)
    program = lower_schedule(priced, build_1f1b(priced), FLUSH)
    assert str(program) == "\n".join(
        [
            "0F0 0>1F0 0F1 0>1F1 1>0B0 0F2 0>1F2 1>0B1 0B0 1>0B2 0B1 0B2 0U2",
            "0>1F0 0>1F1 1F0 1>2F0 0>1F2 2>1B0 1F1 1>2F1 1B0 1>0B0 2>1B1 1F2 1>2F2"
            " 2>1B2 1B1 1>0B1 1B2 1>0B2 1U2",
            "1>2F0 1>2F1 2F0 2B0 2>1B0 2F1 1>2F2 2B1 2>1B1 2F2 2B2 2>1B2 2U2",
        ]
    )


def test_replicas_reduce_before_they_update() -> None:
    """A replicated stage has R before U on each of its devices, and equal lines."""
    priced = chain_prices(2, 1, devices=[(0, 1), (2,)])
    program = lower_schedule(priced, build_gpipe(priced), FLUSH)
    assert str(program) == "\n".join(
        [
            "1>0B0 0F0 0>1F0 0B0 0R0 0U0",
            "1>0B0 0F0 0>1F0 0B0 0R0 0U0",
            "0>1F0 1F0 1B0 1>0B0 1U0",
        ]
    )


def test_shared_devices_need_no_transfers() -> None:
    """Stages on the same device exchange nothing."""
    priced = dag_prices([(0, 1)], 2, devices=[(0,), (0,)])
    program = lower_schedule(priced, build_gpipe(priced), FLUSH)
    assert str(program) == "0F0 0F1 1F0 1F1 1B0 1B1 1U1 0B0 0B1 0U1"


def test_frozen_stages_neither_send_gradients_nor_update() -> None:
    """A stage that needs no backward has forwards and their sends only."""
    priced = chain_prices(2, 1, needs_backward=[False, True])
    program = lower_schedule(priced, build_1f1b(priced), FLUSH)
    assert str(program) == "0F0 0>1F0\n0>1F0 1F0 1B0 1U0"


def test_asynchronous_updates_follow_every_accumulation() -> None:
    """An asynchronous policy updates after every `accumulate` micro-batches."""
    priced = chain_prices(1, 4)
    policy = WeightPolicy(name="2bw", warmups=(0,), accumulate=2)
    program = lower_schedule(priced, build_1f1b(priced), policy)
    assert str(program) == "0F0 0B0 0F1 0B1 0U1 0F2 0B2 0F3 0B3 0U3"


def test_local_averages_after_the_update() -> None:
    """The local policy steps on every replica and then averages the weights."""
    priced = chain_prices(1, 1, devices=[(0, 1)])
    program = lower_schedule(priced, build_1f1b(priced), WeightPolicy(name="local"))
    assert str(program) == "0F0 0B0 0U0 0R0\n0F0 0B0 0U0 0R0"


@pytest.mark.parametrize(
    "policy",
    [
        WeightPolicy(name="2bw", warmups=(1, 0), accumulate=3),
        WeightPolicy(name="2bw", warmups=(3, 0), accumulate=2),
        WeightPolicy(name="stash", warmups=(1,)),
    ],
)
def test_impossible_policies_are_refused(policy: WeightPolicy) -> None:
    """Updates that do not divide the batch, come too early or miss warm-ups are errors."""
    priced = chain_prices(2, 4)
    with pytest.raises(InvalidOption):
        lower_schedule(priced, build_1f1b(priced), policy)


def test_circular_orders_are_refused() -> None:
    """A schedule whose tasks wait for one another in a circle cannot be lowered."""
    schedule = parse_schedule("0B0 0F0", name="wrong")
    with pytest.raises(InvalidOption, match="deadlocks"):
        lower_schedule(chain_prices(1, 1), schedule, FLUSH)


@settings(max_examples=30, deadline=None)
@given(
    priced_stages(replicas=True, shared_devices=True, mixed_sizes=True, frozen=True, updates=True)
)
def test_programs_are_complete_and_deadlock_free(priced: PricedStages) -> None:
    """Each line has the schedule's tasks; all transfers match and complete in posted order."""
    schedule = build_gpipe(priced)
    program = lower_schedule(priced, schedule, FLUSH)
    assert compute_only(program) == schedule.tasks_by_device
    assert parse_program(str(program)) == program
    assert_transfers_complete(priced, program)
    assert run_in_posted_order(priced, program)


def compute_only(program: Program) -> tuple[tuple[Task, ...], ...]:
    """The program without transfers, reductions and updates."""
    return tuple(
        tuple(each for each in line if isinstance(each, Task) and each.kind not in "RU")
        for line in program.instructions_by_device
    )


def assert_transfers_complete(priced: PricedStages, program: Program) -> None:
    """Every transfer between different devices is posted once by each device of both its stages."""
    expected: Counter[tuple[int, Transfer]] = Counter()
    gradients = set(priced.backward_edges)
    for a, b in priced.edges:
        if set(priced.stages[a].devices) == set(priced.stages[b].devices):
            continue
        devices = (*priced.stages[a].devices, *priced.stages[b].devices)
        for device in devices:
            for m in range(priced.num_micro_batches(a)):
                expected[device, Transfer(a, b, "F", m)] += 1
            for m in range(priced.num_micro_batches(b) if (a, b) in gradients else 0):
                expected[device, Transfer(b, a, "B", m)] += 1
    found = Counter(
        (device, each)
        for device, line in enumerate(program.instructions_by_device)
        for each in line
        if isinstance(each, Transfer)
    )
    assert found == expected


def run_in_posted_order(priced: PricedStages, program: Program) -> bool:
    """Whether all devices finish when each direction completes its transfers in posted order."""
    lines = program.instructions_by_device
    at = [0] * len(lines)
    sent: dict[tuple[int, int], list[Transfer]] = {}
    received: dict[tuple[int, int], list[Transfer]] = {}
    arrived: set[tuple[int, Transfer]] = set()
    moved = True
    while moved:
        moved = False
        for device, line in enumerate(lines):
            while at[device] < len(line) and can_pass(priced, device, line[at[device]], arrived):
                each = line[at[device]]
                at[device] += 1
                moved = True
                if isinstance(each, Transfer):
                    is_send = device in priced.stages[each.src].devices
                    for other in other_devices(priced, device, each):
                        ends = (device, other) if is_send else (other, device)
                        (sent if is_send else received).setdefault(ends, []).append(each)
        for (a, b), queue in sent.items():
            expected = received.get((a, b), [])
            while queue and expected and queue[0] == expected[0]:
                transfer = queue.pop(0)
                expected.pop(0)
                arrived |= {(a, transfer), (b, transfer)}
                moved = True
    return all(i == len(line) for i, line in zip(at, lines, strict=True))


def other_devices(priced: PricedStages, device: int, transfer: Transfer) -> tuple[int, ...]:
    """The devices of the other end."""
    senders, receivers = priced.stages[transfer.src].devices, priced.stages[transfer.dst].devices
    return receivers if device in senders else senders


def can_pass(
    priced: PricedStages, device: int, each: Task | Transfer, arrived: set[tuple[int, Transfer]]
) -> bool:
    """Whether a device may go on: posts never wait, tasks wait for the transfers they need."""
    if isinstance(each, Transfer) or each.kind in "WRU":
        return True
    others: list[int] = list(priced.predecessors[each.stage])
    if each.kind != "F":
        others = [b for a, b in priced.backward_edges if a == each.stage]
    kind = "F" if each.kind == "F" else "B"
    size = priced.stages[each.stage].micro_batch_size
    for other in others:
        if device in priced.stages[other].devices:
            continue
        theirs = priced.stages[other].micro_batch_size
        first, last = each.micro_batch * size, (each.micro_batch + 1) * size - 1
        for m in range(first // theirs, last // theirs + 1):
            if (device, Transfer(other, each.stage, kind, m)) not in arrived:  # type: ignore[arg-type]
                return False
    return True


def test_the_replay_notices_a_deadlock() -> None:
    """Reversing two receives makes the replay of these tests stop."""
    priced = chain_prices(2, 2)
    schedule = parse_schedule("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1", name="gpipe")
    assert isinstance(schedule, Schedule)
    good = lower_schedule(priced, schedule, FLUSH)
    assert run_in_posted_order(priced, good)
    bad = parse_program(
        "0F0 0>1F0 0F1 0>1F1 1>0B0 0B0 1>0B1 0B1 0U1\n0>1F1 0>1F0 1F0 1F1 1B0 1>0B0 1B1 1>0B1 1U1"
    )
    assert not run_in_posted_order(priced, bad)
