"""The evaluation of the search loops against the simulator, which shares no code with it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.planner.collect import schedule_prices
from graphplan.schedule.auto import build_schedule
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.steady import plan_steady
from graphplan.simulate import simulate_program
from tests.pure.strategies import chain_prices, priced_stages

FLUSH = WeightPolicy(name="flush")
NAMES = ["gpipe", "1f1b", "kfkb", "interleaved", "zero-bubble", "list"]


@settings(max_examples=40, deadline=None)
@given(
    priced_stages(
        transfers=False,
        replicas=True,
        shared_devices=True,
        mixed_sizes=True,
        frozen=True,
        updates=True,
    ),
    st.sampled_from(NAMES),
)
def test_evaluation_equals_simulation_without_contention(priced: PricedStages, name: str) -> None:
    """With free messages both give the same makespan and the same peaks."""
    try:
        schedule = build_schedule(priced, name=name).schedule
    except InvalidOption:
        return
    found = evaluate_schedule(priced, schedule)
    timeline = simulate_program(priced, lower_schedule(priced, schedule, FLUSH))
    assert timeline.makespan_s == pytest.approx(found.step_s)
    assert tuple(peak.bytes for peak in timeline.peaks) == found.peak_bytes_by_device


@settings(max_examples=40, deadline=None)
@given(priced_stages(shared_devices=True, updates=True), st.sampled_from(NAMES))
def test_contention_only_adds(priced: PricedStages, name: str) -> None:
    """With timed messages the simulator is never faster than the evaluation."""
    try:
        schedule = build_schedule(priced, name=name).schedule
    except InvalidOption:
        return
    timeline = simulate_program(priced, lower_schedule(priced, schedule, FLUSH))
    assert timeline.makespan_s >= evaluate_schedule(priced, schedule).step_s * (1 - 1e-9)


def test_receives_are_posted_early_enough() -> None:
    """Where every channel carries one message at a time, lowering costs nothing at all."""
    priced = chain_prices(4, 8, transfer_s=0.5, latency_s=0.25, update_s=1)
    for schedule in (build_schedule(priced, effort=1.0).schedule, build_gpipe(priced)):
        timeline = simulate_program(priced, lower_schedule(priced, schedule, FLUSH))
        assert timeline.makespan_s == pytest.approx(evaluate_schedule(priced, schedule).step_s)


def test_asynchronous_updates_take_their_time() -> None:
    """The evaluation of a steady order counts every update, as the simulator does."""
    priced = chain_prices(3, 8, update_s=0.5, devices=[(0, 1), (2,), (3,)], reduce_s=0.25)
    policy, schedule = plan_steady(priced, "stash")
    timeline = simulate_program(priced, lower_schedule(priced, schedule, policy))
    found = evaluate_schedule(priced, schedule, policy)
    assert timeline.makespan_s == pytest.approx(found.step_s)


def test_auto_is_the_best_in_the_simulation_too() -> None:
    """On one bus for all messages a plain order may beat the order that wins without contention."""
    priced = chain_prices(
        5,
        6,
        forward_s=[4.0, 2.0, 2.0, 4.0, 4.0],
        backward_s=[4.0, 8.0, 4.0, 4.0, 2.0],
        transfer_s=1.0,
        memory_bytes=10,
    )
    transfers = tuple(
        replace(each, messages=tuple(replace(message, channel="bus") for message in each.messages))
        for each in priced.transfers
    )
    priced = replace(priced, transfers=transfers)
    rival = build_schedule(priced, name="zero-bubble").schedule
    timeline = simulate_program(priced, lower_schedule(priced, rival, FLUSH))
    assert schedule_prices(priced, effort=1.0).prediction.step_s <= timeline.makespan_s
