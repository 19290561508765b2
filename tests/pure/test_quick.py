"""The quick evaluation of 1F1B equals the evaluation of the schedule that 1F1B builds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphplan.nouns.prices import PricedStages
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.quick import is_plain, measure_1f1b
from tests.pure.strategies import chain_prices, dag_prices

times = st.floats(0.1, 5)


def require_equal(priced: PricedStages) -> None:
    """Compare both ways of evaluating."""
    assert is_plain(priced)
    slow = evaluate_schedule(priced, build_1f1b(priced))
    step_s, peaks = measure_1f1b(priced)
    assert step_s == pytest.approx(slow.step_s, rel=1e-12)
    assert peaks == slow.peak_bytes_by_device


@given(st.data(), st.integers(2, 7), st.integers(1, 9))
def test_it_equals_the_schedule(data: st.DataObject, num_stages: int, num_micro: int) -> None:
    """On random DAGs with random times, with and without messages, some stages frozen."""
    pairs = [(i, j) for j in range(num_stages) for i in range(j)]
    edges = sorted(set(data.draw(st.lists(st.sampled_from(pairs), min_size=1))))
    priced = dag_prices(
        edges,
        num_micro,
        num_stages=num_stages,
        transfer_s=data.draw(st.sampled_from([0.0, 0.5])),
        latency_s=data.draw(st.sampled_from([0.0, 0.25])),
        needs_backward=[s >= data.draw(st.integers(0, 2)) for s in range(num_stages)],
    )
    stages = tuple(
        msgspec.structs.replace(
            stage,
            forward_s=data.draw(times),
            backward_s=data.draw(times),
            update_s=data.draw(times),
            saved_bytes=data.draw(st.integers(0, 9)),
            workspace_bytes=data.draw(st.integers(0, 9)),
        )
        for stage in priced.stages
    )
    require_equal(msgspec.structs.replace(priced, stages=stages))


def test_a_chain_takes_the_closed_form() -> None:
    """(M + S - 1)(f + b)."""
    assert measure_1f1b(chain_prices(4, 6))[0] == 18.0
