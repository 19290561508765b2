"""Steady states: modulo scheduling and the orders of the asynchronous weight policies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.referee.program import check_program
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.modulo import build_modulo, solve_period
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.shop import make_shop
from graphplan.schedule.steady import build_steady, measure_period, plan_steady, plan_warmups
from tests.pure.strategies import branch_edges, chain_prices, dag_prices, priced_stages

ASYNCHRONOUS: list[PolicyName] = ["naive", "stash", "vertical-sync", "2bw", "predict", "spectrain1"]


def test_modulo_finds_1f1b_again() -> None:
    """On a balanced chain the least memory at full speed is 1F1B."""
    priced = chain_prices(4, 6)
    period = solve_period(make_shop(priced), allow_split=False)
    assert (period.period_s, period.bytes_in_flight, period.proven) == (
        2.0,
        2 * (4 + 3 + 2 + 1),
        True,
    )
    assert build_modulo(priced).tasks_by_device == build_1f1b(priced).tasks_by_device


def test_modulo_reaches_the_load_with_several_stages_on_a_device() -> None:
    """Four uneven stages on two devices run at the load of the busier one."""
    priced = chain_prices(
        4,
        8,
        forward_s=[1, 2, 1.5, 0.5],
        backward_s=[2, 3, 2.5, 1],
        devices=[(0,), (1,), (0,), (1,)],
        transfer_s=0.25,
    )
    period = solve_period(make_shop(priced), allow_split=False)
    assert period.proven
    assert period.period_s == period.load_s == 7.0


def test_modulo_lengthens_the_period_when_memory_is_short() -> None:
    """With one micro-batch in flight everywhere, the period is the whole round trip."""
    priced = chain_prices(2, 4, memory_bytes=2)
    period = solve_period(make_shop(priced), allow_split=False)
    assert 4.0 <= period.period_s <= 4.2
    assert evaluate_schedule(priced, build_modulo(priced)).fits


@settings(max_examples=20, deadline=None)
@given(
    priced_stages(
        max_stages=5, max_micro_batches=3, shared_devices=True, frozen=True, replicas=True
    ),
    st.booleans(),
)
def test_periods_are_possible(priced: PricedStages, allow_split: bool) -> None:
    """Unrolled periods run, and a long batch takes about its length times the period."""
    schedule = build_modulo(priced, allow_split=allow_split, effort=1.0)
    period = solve_period(make_shop(priced), allow_split=allow_split, effort=1.0)
    assert period.period_s >= period.load_s * (1 - 1e-9)
    step_s = evaluate_schedule(priced, schedule).step_s
    first = max(period.starts.values()) + 16
    assert step_s <= period.period_s * priced.num_micro_batches(0) + first


@settings(max_examples=20, deadline=None)
@given(
    priced_stages(
        max_stages=5, max_micro_batches=4, shared_devices=True, replicas=True, updates=True
    ),
    st.sampled_from(ASYNCHRONOUS),
)
def test_steady_programs_are_legal(priced: PricedStages, name: PolicyName) -> None:
    """Every asynchronous policy's program passes the referee, weight versions included."""
    try:
        policy, schedule = plan_steady(priced, name, effort=1.0)
    except InvalidOption:
        assert name == "2bw"  # too few micro-batches for its two versions
        return
    verdict = check_program(priced, lower_schedule(priced, schedule, policy), policy)
    assert verdict.is_legal, str(verdict)
    for a, b in priced.edges:
        assert policy.warmups[a] >= policy.warmups[b]


def test_free_messages_need_the_height() -> None:
    """Without transfer time the warm-ups are h(s)."""
    priced = dag_prices(branch_edges(2, 2), 8)
    assert plan_warmups(priced) == priced.heights


def test_latency_is_priced_against_memory() -> None:
    """Long messages raise the warm-ups until the period is that of the busiest stage."""
    priced = chain_prices(3, 8, latency_s=1.0)
    warmups = plan_warmups(priced)
    assert warmups == (4, 2, 0)
    assert measure_period(priced, priced.heights) == pytest.approx(10 / 3, rel=0.02)
    assert measure_period(priced, warmups) == pytest.approx(2.0)


def test_warmups_are_cut_to_the_memory() -> None:
    """Room for three micro-batches leaves two warm-ups, and no more where more do not help."""
    priced = chain_prices(4, 8, latency_s=1.0, memory_bytes=6)
    assert plan_warmups(priced) == (2, 2, 1, 0)
    policy, schedule = plan_steady(priced, "stash")
    assert evaluate_schedule(priced, schedule, policy).fits


def test_2bw_accumulates_what_its_versions_allow() -> None:
    """Without a wish 2bw takes the fewest micro-batches that divide the batch and cover w."""
    policy, _ = plan_steady(chain_prices(4, 8), "2bw")
    assert policy == WeightPolicy(name="2bw", warmups=(3, 2, 1, 0), accumulate=4)


def test_updates_lengthen_the_period() -> None:
    """An update after every micro-batch is part of the period; accumulation thins it out."""
    priced = chain_prices(2, 8, update_s=2)
    assert measure_period(priced, (1, 0), accumulate=1) == pytest.approx(4.0)
    assert measure_period(priced, (1, 0), accumulate=4) == pytest.approx(2.5)


def test_rising_warmups_are_refused() -> None:
    """Warm-ups that grow along an edge would deadlock and are refused."""
    with pytest.raises(InvalidOption, match="Give stage 0 at least 1"):
        build_steady(chain_prices(2, 4), WeightPolicy(name="stash", warmups=(0, 1)))


def test_synchronous_policies_have_no_steady_order() -> None:
    """flush is scheduled by build_schedule."""
    with pytest.raises(InvalidOption, match="barrier"):
        plan_steady(chain_prices(2, 4), "flush")


def test_modulo_without_room_is_no_plan() -> None:
    """Memory for less than one micro-batch of both stages of a device is an error."""
    priced = chain_prices(2, 4, devices=[(0,), (0,)], memory_bytes=3)
    with pytest.raises(NoFeasiblePlan):
        build_modulo(priced, effort=1.0)
