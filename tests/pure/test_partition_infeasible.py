"""Where nothing fits, the error says what would, and that then fits."""

from __future__ import annotations

import math

import pytest

from graphplan.errors import NoFeasiblePlan
from graphplan.partition.remedy import explain_infeasible
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, PLANNERS, ask


def explain(**options: object) -> NoFeasiblePlan:
    """The error for four nodes of 100 trained elements (800 bytes with gradients)."""
    defaults: dict[str, object] = {"trained_elements": [100] * 4, "micro_batch_sizes": (2, 4)}
    return explain_infeasible(make_problem_by_hand([1] * 4, CHAIN, **(defaults | options)))  # type: ignore[arg-type]


def test_too_few_devices_are_told_with_the_number_that_suffices() -> None:
    """Four nodes of 800 bytes: two devices of 1,000 hold two of them, four would hold all."""
    error = explain(cluster=make_cluster(2, memory_bytes=1000))
    assert "Nothing fits into 2 devices of 1000 B" in error.message
    assert "'n2' to 'n3' needs 1.578 KiB" in error.message
    assert "se --gpus 4" in error.remedy
    assert "KiB of usable memory" in error.remedy


def test_advice_works() -> None:
    """What is advised is then feasible: recomputation, a smaller micro-batch, more devices."""
    options: dict[str, object] = {
        "saved_bytes": [200] * 4,
        "allow_recompute": False,
        "micro_batch_sizes": (2,),
    }
    error = explain(cluster=make_cluster(4, memory_bytes=1700), **options)
    assert "llow recomputation" in error.remedy
    assert "use --micro-batch 1" in error.remedy
    for change in ({"allow_recompute": True}, {"micro_batch_sizes": (1,)}):
        problem = make_problem_by_hand(
            [1] * 4,
            CHAIN,
            trained_elements=[100] * 4,
            cluster=make_cluster(4, memory_bytes=1700),
            **(options | change),  # type: ignore[arg-type]
        )
        assert ask(problem, "chain").step_s < math.inf


def test_a_planner_that_cannot_is_told_from_a_problem_that_cannot() -> None:
    """Data parallel does not fit, but a pipeline does, and the error says so."""
    problem = make_problem_by_hand(
        [1] * 4, CHAIN, trained_elements=[100] * 4, cluster=make_cluster(4, memory_bytes=1000)
    )
    with pytest.raises(NoFeasiblePlan, match="--planner graph") as caught:
        ask(problem, "data-parallel")
    assert "fits" in caught.value.remedy
    assert ask(problem, "chain").step_s < math.inf


def test_an_impossible_problem_is_explained_by_every_planner() -> None:
    """No device holds a node: all planners raise the same class of error."""
    problem = make_problem_by_hand(
        [1] * 4, CHAIN, trained_elements=[100] * 4, cluster=make_cluster(4, memory_bytes=500)
    )
    for planner in PLANNERS:
        with pytest.raises(NoFeasiblePlan, match="needs"):
            ask(problem, planner)
