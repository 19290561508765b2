"""The planner under the weight policies: objective, memory, refusals, offers, round trip."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from graphplan.cost.hardware import find_cluster
from graphplan.cost.model import CostModel
from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.files import read_noun, write_noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.planner.collect import schedule_prices
from graphplan.planner.loads import measure_load
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import pose_problem
from graphplan.planner.search import search_plan
from graphplan.planner.streaming import offer_policies
from graphplan.planner.whatif import simulate_plan
from graphplan.referee import check_plan
from graphplan.report.summary import render_text
from graphplan.simulate import simulate_program
from tests.pure.opgraphs import mlp

STREAMING: list[PolicyName] = [
    "naive", "stash", "vertical-sync", "2bw", "predict", "spectrain1", "spectrain2"
]  # fmt: skip
ASKED = SearchOptions(batch_size=64, micro_batch_sizes=(4,), planner="equal", baselines=False)


def search(graph: OpGraph | None = None, cluster: Cluster | None = None, **options: object) -> Plan:
    """A plan of four layers of two matrices each on four devices."""
    asked = dataclasses.replace(ASKED, **options)  # type: ignore[arg-type]
    return search_plan(graph or mlp(8, 8192), cluster or find_cluster("summit", gpus=4), asked)


@pytest.mark.parametrize(
    ("name", "direction"),
    [*((name, "optimizer") for name in STREAMING), ("predict", "displacement")],
)
def test_plans_under_every_policy(name: PolicyName, direction: str, tmp_path: Path) -> None:
    """Legal, at the speed of the busiest device, with the memory of all versions; reads back."""
    plan = search(policy=name, direction=direction)
    assert not check_plan(plan).violations
    assert plan.policy.name == name
    assert plan.policy.warmups == (3, 2, 1, 0)
    count, policy = plan.prices.num_micro_batches(0), plan.policy
    assert policy.accumulate == (count if name == "2bw" else 1)
    ideal_s = count * measure_load(plan.prices, policy.accumulate)
    assert plan.prediction.step_s == pytest.approx(ideal_s, rel=0.02)
    write_noun(plan, tmp_path / "plan.json")
    assert read_noun(tmp_path / "plan.json", Plan) == plan
    naive = search(policy="naive")
    weight_bytes = 2 * 8192 * 8192 * 4
    for s in range(4):
        extra = plan.prices.stages[s].fixed_bytes - naive.prices.stages[s].fixed_bytes
        copies = policy.num_versions(s) + (direction == "displacement" and s < 3)
        assert extra == (copies - 1) * weight_bytes


def test_2bw_is_refused_with_the_smallest_legal_value() -> None:
    """Two versions are enough only for m >= max w_s."""
    with pytest.raises(InvalidOption, match="accumulate at least") as caught:
        search(policy="2bw", accumulate=2)
    assert "accumulate to 4" in caught.value.remedy  # 3 does not divide 16
    assert search(policy="2bw", accumulate=4).policy.accumulate == 4


def test_2bw_without_a_pipeline_is_flush() -> None:
    """With one stage there is nothing to double-buffer."""
    plan = search(policy="2bw", planner="data-parallel")
    assert plan.policy == WeightPolicy()


def test_versions_that_do_not_fit_are_avoided_or_refused() -> None:
    """Memory counts the versions: where stash does not fit, 2bw may."""
    needed = max(search(policy="stash").prediction.peak_bytes_by_device)
    cluster = find_cluster("summit", gpus=4)
    kind = msgspec.structs.replace(cluster.types[0], memory_bytes=needed - 1)
    small = msgspec.structs.replace(cluster, types=(kind, *cluster.types[1:]))
    plan = search(policy="2bw", cluster=small)
    assert max(plan.prediction.peak_bytes_by_device) < needed
    try:
        stash = search(policy="stash", cluster=small)
    except NoFeasiblePlan:
        return
    assert max(stash.prediction.peak_bytes_by_device) < needed


def test_flush_says_what_a_drain_costs() -> None:
    """No asynchronous policy is chosen unasked; gain and staleness are told."""
    plan = search(micro_batch_sizes=(8,))
    assert plan.policy.name == "flush"
    offers = {offer.policy.name: offer for offer in plan.offers}
    assert offers["2bw"].step_s < plan.prediction.step_s
    assert offers["2bw"].staleness == 1
    assert offers["stash"].staleness == 1  # three micro-batches of an update of eight
    assert max(offers["stash"].peak_bytes_by_device) > max(offers["2bw"].peak_bytes_by_device)
    text = render_text(plan, simulate_program(plan.prices, plan.parse_program()))
    assert "Without a drain the step would take" in text
    assert "1 update stale" in text


@pytest.mark.parametrize("devices", [(0, 1, 0, 1), (0, 1, 1, 0)])
def test_stages_that_share_devices_are_told_too(devices: tuple[int, ...]) -> None:
    """Four stages on two devices: their steady order gains what the drain costs flush."""
    options = SearchOptions(batch_size=1024, micro_batch_sizes=(128,))
    cost = CostModel(pose_problem(mlp(8, 2048), find_cluster("summit", gpus=2), options))
    nodes = range(len(cost.problem.nodes))
    cuts = [list(nodes)[i * len(nodes) // 4 : (i + 1) * len(nodes) // 4] for i in range(4)]
    parts = [
        Part(nodes=tuple(cut), devices=(device,), micro_batch_size=128)
        for cut, device in zip(cuts, devices, strict=True)
    ]
    stages = assemble_stages(cost.problem, parts)
    flush = schedule_prices(cost.price_stages(stages), WeightPolicy(), schedule="list")
    offers = offer_policies(cost, stages, options, effort=2.0)
    assert [offer.policy.name for offer in offers] == ["2bw", "predict", "stash"]
    for offer in offers:
        ideal_s = 8 * measure_load(cost.price_stages(stages, offer.policy), 8)
        assert offer.step_s == pytest.approx(ideal_s, rel=0.02)
        assert offer.step_s < flush.prediction.step_s
        assert offer.staleness == 1
        assert offer.policy.warmups[0] > offer.policy.warmups[-1]


def test_a_streaming_plan_says_how_stale_it_is() -> None:
    """The summary tells the staleness in place of a drain."""
    plan = search(policy="stash")
    text = render_text(plan, simulate_program(plan.prices, plan.parse_program()))
    assert "Without a drain devices are idle" in text
    assert "up to 3 updates" in text


def test_2bw_below_the_depth_is_legal_and_told() -> None:
    """The paper asks for as many micro-batches as stages; one less is enough, and is said."""
    plan = search(policy="2bw")
    most = max(plan.policy.warmups)
    for accumulate, is_told in ((most, True), (most + 1, False)):
        policy = msgspec.structs.replace(plan.policy, accumulate=accumulate)
        shown = msgspec.structs.replace(plan, policy=policy)
        text = " ".join(render_text(shown, simulate_plan(plan)).split())
        assert (f"PipeDream-2BW asks for {most + 1} micro-batches" in text) == is_told


def test_another_policy_can_be_simulated() -> None:
    """`simulate --policy` orders the same stages anew, with the memory of its versions."""
    plan = search()
    other = simulate_plan(plan, policy="stash")
    wanted = search(policy="stash").prediction.peak_bytes_by_device
    assert tuple(peak.bytes for peak in other.peaks) == wanted
    with pytest.raises(InvalidOption, match="order of its own"):
        simulate_plan(plan, policy="stash", schedule="gpipe")


def test_wishes_that_contradict_each_other_are_refused() -> None:
    """A schedule that a policy cannot have."""
    with pytest.raises(InvalidOption, match="order of its own"):
        dataclasses.replace(ASKED, policy="stash", schedule="1f1b")


def test_autocast_is_planned_under_a_policy_that_forgets() -> None:
    """Casts of the forward's weights do not serve the backward: nothing is refused."""
    plan = search(policy="predict", precision="bfloat16", mixed=True)
    assert plan.training.mixed
    assert not check_plan(plan).violations


def test_local_steps_thin_out_the_averaging() -> None:
    """H local steps cost a share of one averaging a batch; all stages have as many replicas."""
    often, seldom = (
        search(
            mlp(8, 1024),
            policy="local",
            planner="data-parallel",
            micro_batch_sizes=None,
            batch_size=1 << 14,
            local_steps=steps,
        )
        for steps in (1, 4)
    )
    assert len(often.prices.stages[0].devices) == 4
    assert seldom.policy.local_steps == 4
    ratio = seldom.prices.stages[0].reduce_s / often.prices.stages[0].reduce_s
    assert ratio == pytest.approx(0.25)
    assert not check_plan(seldom).violations
