"""Where nothing fits, the error says what would, and that then fits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graphplan.errors import GraphplanError, NoFeasiblePlan
from graphplan.nouns.policy import WeightPolicy
from graphplan.partition.remedy import explain_infeasible
from tests.pure.problems import make_cluster, make_problem_by_hand
from tests.pure.questions import CHAIN, PLANNERS, ask


def explain(policy: WeightPolicy | None = None, **options: Any) -> GraphplanError:
    """The error for four nodes of 100 trained elements (800 bytes with gradients)."""
    defaults: dict[str, Any] = {"trained_elements": [100] * 4, "micro_batch_sizes": (2, 4)}
    problem = make_problem_by_hand([1] * 4, CHAIN, **(defaults | options))
    return explain_infeasible(problem, policy=policy or WeightPolicy(), planner="graph")


def test_too_few_devices_are_told_with_the_number_that_suffices() -> None:
    """Four nodes of 800 bytes: two devices of 1,000 hold two of them, four would hold all."""
    error = explain(cluster=make_cluster(2, memory_bytes=1000))
    assert "Nothing fits into 2 devices of 1000 B" in error.message
    assert "'n2' to 'n3' needs 1.578 KiB" in error.message
    assert "se --gpus 4" in error.remedy
    assert "KiB of usable memory" in error.remedy


def test_advice_works() -> None:
    """What is advised is then feasible: recomputation, a smaller micro-batch, more devices."""
    options: dict[str, Any] = {
        "saved_bytes": [200] * 4,
        "recompute": "none",
        "micro_batch_sizes": (2,),
    }
    error = explain(cluster=make_cluster(4, memory_bytes=1700), **options)
    assert "llow recomputation" in error.remedy
    assert "use --micro-batch 1" in error.remedy
    for change in ({"recompute": "auto"}, {"micro_batch_sizes": (1,)}):
        problem = make_problem_by_hand(
            [1] * 4,
            CHAIN,
            trained_elements=[100] * 4,
            cluster=make_cluster(4, memory_bytes=1700),
            **(options | change),
        )
        assert ask(problem, "chain").step_s < math.inf


def test_a_planner_that_cannot_is_told_from_a_problem_that_cannot() -> None:
    """Data parallel does not fit, but a pipeline does, and the error says so."""
    problem = make_problem_by_hand(
        [1] * 4, CHAIN, trained_elements=[100] * 4, cluster=make_cluster(4, memory_bytes=1000)
    )
    with pytest.raises(NoFeasiblePlan, match="--planner auto") as caught:
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


def test_the_versions_of_a_policy_count() -> None:
    """Four devices of 1,000 bytes hold a node each, but not with the two versions of 2bw."""
    cluster = make_cluster(4, memory_bytes=1000)
    error = explain(WeightPolicy(name="2bw"), cluster=cluster)
    assert isinstance(error, NoFeasiblePlan)
    assert "needs 1.203 KiB (800 B weights in 2 versions of 2bw" in error.message
    assert "se --policy flush" in error.remedy
    stash = explain(WeightPolicy(name="stash"), cluster=cluster)
    assert "se --policy flush" in stash.remedy


def test_a_planner_that_missed_what_fits_is_told_another_one() -> None:
    """Where a pipeline fits, the advice is a planner that finds it."""
    missed = explain(cluster=make_cluster(4, memory_bytes=1000))
    assert isinstance(missed, NoFeasiblePlan)
    assert "The planner 'graph' found nothing that fits" in missed.message
    assert missed.remedy.endswith("use --planner chain.")
