"""Delays, the bound, stable learning rates and LocalSGD's time against what is known of them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages
from graphplan.schedule.steady import order_steady
from graphplan.staleness.bounds import Setting, bound_terms, chain_delay, graph_delay
from graphplan.staleness.delays import Delays, count_needed, measure_delays, time_schedule
from graphplan.staleness.localsgd import localsgd_ticks, pipedream_ticks
from graphplan.staleness.shapes import make_chain, make_shape
from graphplan.staleness.stability import delayed_limit, policy_limit, predicted_limit
from tests.pure.strategies import Edges, dag_edges, dag_prices


def delays_of(shape: PricedStages, policy: WeightPolicy | None = None) -> tuple[Delays, int]:
    """The delays of a shape, and how many stages share the phase of the first forward."""
    policy = policy or WeightPolicy(name="stash", warmups=shape.heights)
    edges, num = shape.edges, len(shape.stages)
    longer = make_shape(edges, num_stages=num, num_micro_batches=count_needed(policy))
    schedule = order_steady(longer, policy.warmups)
    ticks = time_schedule(longer, schedule)
    m = longer.num_micro_batches(0) // 2
    first = min(tick for task, tick in ticks.items() if task.kind == "F" and task.micro_batch == m)
    phase = sum(
        (tick - first) % 2 == 0
        for task, tick in ticks.items()
        if task.kind == "B" and task.micro_batch == m
    )
    return measure_delays(longer, schedule, policy), phase


@pytest.mark.parametrize("num_stages", range(1, 17))
def test_chains_have_the_published_delays(num_stages: int) -> None:
    """floor(S^2 - S/2) at most and (S^2 - 1)/2 in the mean, with ties in the order of stages."""
    delays, _ = delays_of(make_chain(num_stages))
    assert delays.largest == chain_delay(num_stages) == int(num_stages**2 - num_stages / 2)
    assert delays.mean == (num_stages**2 - 1) / 2
    assert [row.staleness for row in delays.stages] == list(range(num_stages - 1, -1, -1))


def test_ticks_are_those_of_the_closed_form() -> None:
    """F(s,i) starts at s+i or 2i+s, B(s,i) at 2i+2S-1-s."""
    shape = make_chain(4, num_micro_batches=10)
    for task, tick in time_schedule(shape, order_steady(shape, (3, 2, 1, 0))).items():
        s, i = task.stage, task.micro_batch
        forward = s + i if i < 4 - s else 2 * i + s
        assert tick == (forward if task.kind == "F" else 2 * i + 7 - s)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_graphs_with_one_source_follow_the_phase_law(data: st.DataObject) -> None:
    """n (D - 1) + e, hence within n/2 of n D - n/2, and never more than the chain."""
    num = data.draw(st.integers(1, 10), label="stages")
    shape = make_shape(data.draw(dag_edges(num_stages=num), label="edges"), num_stages=num)
    delays, phase = delays_of(shape)
    depth = 1 + max(shape.heights)
    assert delays.largest == num * (depth - 1) + phase
    assert abs(delays.largest - graph_delay(num, depth)) <= num / 2
    assert delays.largest <= chain_delay(num)
    assert tuple(row.staleness for row in delays.stages) == shape.heights


def draw_graph(rng: random.Random, reach: int) -> tuple[Edges, int]:
    """2 to 14 stages, each reading one or two of the `reach` stages before it."""
    num = rng.randint(2, 14)
    edges = {
        (rng.randrange(max(0, dst - reach), dst), dst)
        for dst in range(1, num)
        for _ in range(rng.randint(1, 2))
    }
    return sorted(edges), num


@pytest.mark.parametrize("reach", [3, 14])
def test_random_graphs_are_near_n_d_minus_half_n(reach: int) -> None:
    """Of 80 graphs nine in ten are within 1.5 of n D - n/2; wide ones leave it (a star by n/2)."""
    rng = random.Random(reach)
    near = 0
    for _ in range(80):
        edges, num = draw_graph(rng, reach)
        shape = make_shape(edges, num_stages=num)
        off = delays_of(shape)[0].largest - graph_delay(num, 1 + max(shape.heights))
        near += abs(off) <= 1.5
    assert near >= 72
    star = make_shape([(0, leaf) for leaf in range(1, 12)], num_stages=12)
    assert delays_of(star)[0].largest == 12 + 11 == graph_delay(12, 2) + 5


def test_2bw_and_vertical_sync_read_what_was_replaced() -> None:
    """2bw's gradients are one own update behind everywhere, vertical sync's as the deepest."""
    shape = make_chain(4)
    for name, accumulate, behind in (("2bw", 3, 1), ("2bw", 5, 1), ("vertical-sync", 1, 3)):
        policy = WeightPolicy(name=name, warmups=(3, 2, 1, 0), accumulate=accumulate)  # type: ignore[arg-type]
        delays, _ = delays_of(shape, policy)
        assert [row.staleness for row in delays.stages] == [behind] * 4


def test_stages_without_weights_have_no_delays() -> None:
    """A frozen stage neither reads nor writes; frozen stages alone are refused."""
    policy = WeightPolicy(name="stash", warmups=(1, 1, 0))
    priced = dag_prices([(0, 2), (1, 2)], 36, needs_backward=[False, True, True])
    delays = measure_delays(priced, order_steady(priced, policy.warmups), policy)
    assert [row.stage for row in delays.stages] == [1, 2]
    assert delays.largest == chain_delay(2)
    frozen = dag_prices([], 12, num_stages=1, needs_backward=[False])
    with pytest.raises(InvalidOption, match="no delays"):
        measure_delays(frozen, order_steady(frozen, (0,)), WeightPolicy(name="stash", warmups=(0,)))


def test_localsgd_takes_the_published_time() -> None:
    """S = R = 16 and N = 600: 1230 against 1770, 1440 and 1260."""
    assert pipedream_ticks(16, 600) == 1230
    times = [localsgd_ticks(16, 600, num_replicas=16, local_steps=h) for h in (2, 5, 30)]
    assert times == [1770, 1440, 1260]


@pytest.mark.parametrize("num_stages", [1, 2, 5])
def test_pipedream_ticks_are_those_of_its_order(num_stages: int) -> None:
    """The formula is the last tick of the steady order."""
    shape = make_chain(num_stages, num_micro_batches=9)
    ticks = time_schedule(shape, order_steady(shape, shape.heights))
    assert max(ticks.values()) + 1 == pipedream_ticks(num_stages, 9)


def test_stable_rates_are_the_published_ones() -> None:
    """2, 1, 0.618034 and 0.445042 for delays of 0 to 3."""
    limits = [delayed_limit(lag) for lag in range(4)]
    assert limits == pytest.approx([2.0, 1.0, 0.618034, 0.445042], abs=1e-6)
    assert limits == pytest.approx([predicted_limit(lag, 0) for lag in range(4)], rel=1e-9)


@pytest.mark.parametrize("lag", range(6))
@pytest.mark.parametrize("distance", range(6))
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_limits_part_decay_from_growth(lag: int, distance: int, momentum: float) -> None:
    """The largest root lies inside the unit circle just below the limit, outside just above."""
    limit = predicted_limit(lag, distance, momentum)
    for factor, stable in ((0.5, True), (0.999, True), (1.001, False)):
        polynomial = np.zeros(lag + 3)
        polynomial[0] += 1
        polynomial[1] -= 1 + momentum
        polynomial[2] += momentum
        polynomial[-2] += factor * limit * (1 + distance)
        polynomial[-1] -= factor * limit * distance
        assert bool(np.abs(np.roots(polynomial)).max() < 1) == stable


def test_prediction_pays_with_momentum_only() -> None:
    """At three updates of delay it lowers the limit of plain SGD and doubles that of 0.9."""
    gains = [predicted_limit(3, 3, b) / predicted_limit(3, 0, b) for b in (0.0, 0.5, 0.9, 0.99)]
    assert gains == pytest.approx([0.597, 0.817, 2.077, 7.50], rel=0.01)


def test_policies_have_the_limit_of_their_worst_stage() -> None:
    """Of a chain of three: prediction lowers the limit of the delay, 2bw has delay one."""
    limits = {
        name: policy_limit(WeightPolicy(name=name, warmups=(2, 1, 0), accumulate=1))
        for name in ("flush", "naive", "stash", "vertical-sync", "2bw", "predict", "spectrain1")
    }
    assert limits["flush"] == 2.0
    assert limits["2bw"] == pytest.approx(1.0)
    for name in ("naive", "stash", "vertical-sync"):
        assert limits[name] == pytest.approx(0.618034, abs=1e-6)
    assert limits["predict"] == limits["spectrain1"] == predicted_limit(2, 2)
    assert limits["predict"] < limits["stash"]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 64), st.integers(0, 4000), st.floats(0.01, 100.0), st.floats(0.01, 10.0))
def test_the_bound_is_smallest_at_its_rate(
    num_stages: int, delay: int, curvature: float, gradient: float
) -> None:
    """The terms are those of the paper and a tenth more or less of the rate is never better."""
    setting = Setting(curvature=curvature, gradient=gradient, num_steps=1000)
    best = bound_terms(num_stages, delay, setting)
    assert best.descent == pytest.approx(2 * num_stages / (best.rate * 1000))
    assert best.noise == pytest.approx(best.rate * num_stages * curvature * gradient**2)
    assert best.staleness == pytest.approx((best.rate * curvature * delay * gradient) ** 2)
    for factor in (0.9, 1.1):
        other = bound_terms(num_stages, delay, setting, rate=factor * best.rate)
        assert other.total >= best.total * (1 - 1e-12)


def test_the_staleness_term_grows_with_the_fourth_power() -> None:
    """At a fixed rate delta ~ S^2 makes it Theta(S^4)."""
    terms = [bound_terms(s, chain_delay(s), Setting(), rate=0.01).staleness for s in (64, 128)]
    assert terms[1] / terms[0] == pytest.approx(16, rel=0.02)


def test_settings_must_be_positive() -> None:
    """A curvature of zero is told to the user."""
    with pytest.raises(InvalidOption, match="must be positive"):
        Setting(curvature=0.0)
