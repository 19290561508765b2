"""The player: one number for a plan, whoever asks, however many replicas are played."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule
from graphplan.planner.judge import judge_stages, order_plainly
from graphplan.play.cast import cast_devices
from graphplan.play.player import play_script
from graphplan.play.script import Script
from graphplan.schedule.auto import FIXED
from graphplan.schedule.dispatch import Followed, dispatch_tasks, follow_orders
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.greedy import build_rehearsed, list_starts, rehearse_orders
from graphplan.schedule.lower import lower_schedule, write_script
from graphplan.schedule.pool import Pool
from graphplan.schedule.shop import make_shop, number_tasks
from graphplan.simulate import predict_step
from graphplan.simulate.compile import compile_program
from tests.pure.cuts import list_cuts, make_random_problem
from tests.pure.strategies import chain_prices, priced_stages
from tests.pure.test_simulate_properties import share_channels

FLUSH = WeightPolicy()


@st.composite
def crowded_stages(draw: st.DrawFn) -> PricedStages:
    """Random stages with all that the player knows, and sometimes few channels."""
    priced = draw(
        priced_stages(
            replicas=True,
            shared_devices=True,
            mixed_sizes=True,
            frozen=True,
            updates=True,
            buckets=True,
        )
    )
    width = draw(st.sampled_from([0, 0, 2, 100]), label="senders on one channel")
    return share_channels(priced, width) if width else priced


def draw_schedule(draw: st.DataObject, priced: PricedStages) -> Schedule:
    """A schedule that takes no search; GPipe always exists."""
    try:
        return FIXED[draw.draw(st.sampled_from([*FIXED]))](priced)
    except InvalidOption:
        return FIXED["gpipe"](priced)


def predict(priced: PricedStages, schedule: Schedule, policy: WeightPolicy = FLUSH) -> float:
    """What the simulator says of a schedule's program."""
    return predict_step(priced, lower_schedule(priced, schedule, policy)).step_s


# -- one number for a plan -------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(crowded_stages())
def test_a_rehearsal_is_the_simulation_of_its_schedule(priced: PricedStages) -> None:
    """To the last bit, with replicas, shared devices and channels, unequal micro-batches."""
    best = rehearse_orders(make_shop(priced)).best
    assert best is not None
    assert best.value_s == predict(priced, build_rehearsed(priced))


@settings(max_examples=60, deadline=None)
@given(st.data(), crowded_stages(), st.sampled_from(["flush", "local"]))
def test_an_evaluation_is_the_simulation(
    draw: st.DataObject, priced: PricedStages, name: str
) -> None:
    """Step and peaks of every schedule that takes no search, and of both policies that drain."""
    schedule = draw_schedule(draw, priced)
    policy = WeightPolicy(name="flush" if name == "flush" else "local")
    found = evaluate_schedule(priced, schedule, policy)
    simulated = predict_step(priced, lower_schedule(priced, schedule, policy))
    assert found.step_s == simulated.step_s
    assert found.peak_bytes_by_device == simulated.peak_bytes_by_device


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schedule", ["auto", "1f1b", "gpipe"])
def test_the_judge_says_what_the_simulator_says(seed: int, schedule: str) -> None:
    """Of every cut of a random problem whose whole batch is played."""
    problem = make_random_problem(random.Random(seed), 4, 3, micro_batch_sizes=(2, 8))
    cost = CostModel(problem)
    for stages in list_cuts(problem):
        priced = cost.price_stages(stages)
        quick = schedule == "auto"
        order = build_rehearsed(priced) if quick else order_plainly(priced, schedule)
        assert judge_stages(cost, stages, schedule=schedule) == predict(priced, order)


# -- one script for an order -----------------------------------------------------------------------


def follow(priced: PricedStages, schedule: Schedule) -> tuple[Followed, Script]:
    """A schedule followed with delays, and its script on all devices."""
    shop = make_shop(priced)
    orders, kinds = number_tasks(shop, schedule)
    followed = follow_orders(shop, orders, kinds)
    assert followed is not None
    return followed, write_script(shop, followed, kinds, cast_devices(priced, fold=False))[0]


@settings(max_examples=60, deadline=None)
@given(st.data(), crowded_stages())
def test_the_reader_of_programs_finds_the_same_script(
    draw: st.DataObject, priced: PricedStages
) -> None:
    """Orders written as arrays, and written as a program and read again: the same arrays."""
    schedule = draw_schedule(draw, priced)
    _, direct = follow(priced, schedule)
    read = compile_program(priced, lower_schedule(priced, schedule, FLUSH)).script
    for name in Script._fields:
        assert np.array_equal(getattr(direct, name), getattr(read, name)), name


@settings(max_examples=60, deadline=None)
@given(st.data(), crowded_stages())
def test_messages_that_never_wait_are_never_later(
    draw: st.DataObject, priced: PricedStages
) -> None:
    """The time with delays alone, by which orders are passed over, is never above the played."""
    schedule = draw_schedule(draw, priced)
    followed, script = follow(priced, schedule)
    played = play_script(script).makespan_s
    assert followed.makespan_s <= played * (1 + 1e-9)


# -- compiled or not, folded or not ----------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(crowded_stages())
def test_choosing_is_the_same_compiled_or_not(priced: PricedStages) -> None:
    """Every time and the sequence of a dispatch, to the last bit."""
    shop = make_shop(priced)
    pool = Pool(shop, "makespan", bound_s=0.0)
    for rules in list(list_starts(pool, allow_split=True))[::7]:
        found = dispatch_tasks(shop, rules)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "graphplan.schedule.dispatch.play_script",
                lambda *args: play_script(*args, is_compiled=False),
            )
            plain = dispatch_tasks(shop, rules)
        assert (found is None) == (plain is None)
        if found is not None and plain is not None:
            for one, two in zip(found.times, plain.times, strict=True):
                assert np.array_equal(one, two)


@settings(max_examples=30, deadline=None)
@given(crowded_stages())
def test_following_a_dispatch_takes_no_longer(priced: PricedStages) -> None:
    """What idled for a better task does so no longer when it knows its order."""
    shop = make_shop(priced)
    for rules in list(list_starts(Pool(shop, "makespan", 0.0), allow_split=True))[::5]:
        found = dispatch_tasks(shop, rules)
        if found is not None:
            again = follow_orders(shop, found.orders, shop.kinds_for(rules.split))
            assert again is not None
            assert again.makespan_s <= found.makespan_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("devices", "channels", "num_played"),
    [
        ([(0, 1, 2, 3), (4, 5, 6, 7)], "pair", 2),
        ([(0, 1, 2, 3), (4, 5, 6, 7)], "device", 2),
        ([(0, 1, 2, 3), (4, 5)], "pair", 3),
        ([(0, 1, 2), (3, 4)], "pair", 5),
        ([(0, 1, 2, 3), (0, 1, 2, 3)], "pair", 1),
    ],
)
def test_replicas_in_lock_step_are_played_once(
    devices: list[tuple[int, ...]], channels: str, num_played: int
) -> None:
    """Four pairs of devices are one; two replicas behind four are half of them; 3 and 2 are all."""
    priced = chain_prices(
        2, 4, devices=devices, transfer_s=0.5, reduce_s=1.0, update_s=0.25, channels=channels
    )
    assert len(cast_devices(priced, fold=True).devices) == num_played
    schedule = order_plainly(priced)
    assert evaluate_schedule(priced, schedule).step_s == predict(priced, schedule)


def test_an_island_of_its_own_kind_is_played_too() -> None:
    """One slow wire makes its replica late, and the all-reduce waits for it."""
    priced = chain_prices(2, 4, devices=[(0, 1, 2, 3), (4, 5, 6, 7)], transfer_s=1.0, reduce_s=1.0)
    forward, back = priced.transfers
    slow = msgspec.structs.replace(forward.messages[1], seconds=5.0)
    messages = (forward.messages[0], slow, *forward.messages[2:])
    late = msgspec.structs.replace(
        priced, transfers=(msgspec.structs.replace(forward, messages=messages), back)
    )
    assert cast_devices(priced, fold=True).devices.tolist() == [0, 4]
    assert cast_devices(late, fold=True).devices.tolist() == [0, 1, 4, 5]
    schedule = order_plainly(late)
    assert evaluate_schedule(late, schedule).step_s == predict(late, schedule)
    assert evaluate_schedule(late, schedule).step_s > evaluate_schedule(priced, schedule).step_s
