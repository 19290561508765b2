"""Learned costs from end to end, on tables that obey a known law: train, store, predict, plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import numpy
import pytest

from graphplan.cli.main import run_command
from graphplan.cost.hardware import find_cluster, find_device_type
from graphplan.cost.learned import Progress, learn_costs
from graphplan.cost.predict import predict_table
from graphplan.errors import InvalidFile, MissingExtra
from graphplan.files import read_noun, write_noun
from graphplan.nouns.learned import LearnedCosts
from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from graphplan.planner.options import SearchOptions
from graphplan.planner.pose import choose_training, predict_tables
from graphplan.planner.search import search_plan
from graphplan.report.summary import render_text
from graphplan.simulate import simulate_program
from tests.pure.costsets import CPU, RATIO, SIZES, make_net, make_set, obey_law

HELD_OUT = ("net-5", "net-8")


@pytest.fixture(scope="module")
def reports() -> list[Progress]:
    """What the training reported."""
    return []


@pytest.fixture(scope="module")
def learned(reports: list[Progress]) -> LearnedCosts:
    """A cost model trained for a moment."""
    return learn_costs(
        make_set(14), hold_out=HELD_OUT, epochs=25, num_trees=60, seed=1, report=reports.append
    )


def sum_table(table: ProfileTable) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]:
    """Seconds of every op at every size."""
    return numpy.array(
        [
            [sum(parts) for parts in zip(r.forward_s, r.input_grad_s, r.weight_grad_s, strict=True)]
            for r in table.rows
        ]
    )


def test_held_out_models_are_predicted(learned: LearnedCosts) -> None:
    """On models outside training the chosen predictor errs at most half as much as the roofline."""
    part = learned.card.held_out
    assert part is not None and part.models == HELD_OUT
    own, roofline = (part.score_by_predictor[name] for name in (learned.predictor, "roofline"))
    assert own.op_error <= 0.5 * roofline.op_error
    assert own.step_error <= 0.12
    table = predict_table(learned, make_net(248, 4), CPU, batch_sizes=SIZES)
    truth = obey_law(make_net(248, 4))
    assert numpy.median(abs(sum_table(table) / sum_table(truth) - 1)) < 0.15
    assert table.source == "learned"
    assert table.calibration == pytest.approx([RATIO] * len(SIZES), rel=0.05)


def test_both_predictors_are_judged_and_the_better_is_used(learned: LearnedCosts) -> None:
    """The card holds the errors of both on validation, and names the one that won."""
    scores = learned.card.validation.score_by_predictor
    assert set(scores) == {"network", "trees", "roofline"}
    told = dict(part.split(" ") for part in learned.card.why.partition(": ")[2].split(", "))
    assert min(told, key=lambda name: float(told[name])) == learned.predictor
    models = [*learned.card.training.models, *learned.card.validation.models, *HELD_OUT]
    assert sorted(models) == sorted(make_set(14).models)
    assert learned.card.seed == 1 and {"torch", "torch-geometric"} <= set(learned.card.versions)


def test_training_reports_its_progress(learned: LearnedCosts, reports: list[Progress]) -> None:
    """Both stages tell how far they are and the error so far, which never rises."""
    network = [each for each in reports if each.stage == "network"]
    assert [each.num_done for each in network] == list(range(1, len(network) + 1))
    errors = [each.error for each in network]
    assert errors == sorted(errors, reverse=True)
    assert any(each.stage == "trees" for each in reports)


def test_the_same_seed_learns_the_same() -> None:
    """Training is deterministic: equal arrays, whatever the clock says."""
    first, second = (learn_costs(make_set(6), epochs=2, num_trees=3, seed=3) for _ in range(2))
    assert first.arrays == second.arrays
    assert first.predictor == second.predictor


def test_a_file_predicts_what_was_trained(learned: LearnedCosts, tmp_path: Path) -> None:
    """The file is JSON of numbers and names; reading it back changes no prediction."""
    write_noun(learned, tmp_path / "cost.json")
    again = read_noun(tmp_path / "cost.json", LearnedCosts)
    assert again == learned
    net = make_net(300, 2)
    before, after = (predict_table(each, net, CPU, batch_sizes=(1, 8)) for each in (learned, again))
    assert before == after
    json.loads((tmp_path / "cost.json").read_text())


@pytest.mark.parametrize(("epochs", "num_trees", "winner"), [(1, 60, "trees"), (40, 1, "network")])
def test_each_predictor_survives_its_file(
    epochs: int, num_trees: int, winner: str, tmp_path: Path
) -> None:
    """Whichever wins is stored: a network without training loses, and so does a single tree."""
    found = learn_costs(make_set(8), epochs=epochs, num_trees=num_trees)
    assert found.predictor == winner
    write_noun(found, tmp_path / "cost.json")
    again = read_noun(tmp_path / "cost.json", LearnedCosts)
    net = make_net(200, 2)
    before, after = (predict_table(each, net, CPU, batch_sizes=(1, 8)) for each in (found, again))
    assert before == after
    assert all(0 < row.forward_s[0] < 1 for row in before.rows)


def test_broken_arrays_are_errors(learned: LearnedCosts) -> None:
    """A missing array, another shape, or a number that is none."""
    name = "ratio.error"
    broken = (
        {key: value for key, value in learned.arrays.items() if key != name},
        learned.arrays | {name: learned.arrays["ratio.mean"]},
        learned.arrays | {name: msgspec.structs.replace(learned.arrays[name], content=b"\xff" * 8)},
    )
    for arrays in broken:
        with pytest.raises(InvalidFile, match="learned cost model"):
            predict_table(
                msgspec.structs.replace(learned, arrays=arrays),
                make_net(64, 1),
                CPU,
                batch_sizes=(1,),
            )


def test_extrapolation_is_marked(learned: LearnedCosts) -> None:
    """A huge op and an op of a kind that was never measured are marked, with a wide uncertainty."""
    inside = predict_table(learned, make_net(300, 2), CPU, batch_sizes=(1, 8))
    assert not any(row.extrapolated for row in inside.rows)
    assert "extrapolated" not in inside.provenance
    strange = predict_table(learned, make_net(300, 1, last="mish"), CPU, batch_sizes=(1, 8))
    assert [row.extrapolated for row in strange.rows] == [False, True]
    assert "1 of 2 ops extrapolated (mish: never measured)" in strange.provenance
    assert strange.rows[1].uncertainty >= 0.69 > inside.rows[1].uncertainty
    huge = predict_table(learned, make_net(30_000, 1), CPU, batch_sizes=(1, 8))
    assert all(row.extrapolated for row in huge.rows)
    elsewhere = predict_table(learned, make_net(300, 1), find_device_type("h100"), batch_sizes=(1,))
    assert all(row.extrapolated for row in elsewhere.rows)
    assert "the device: never measured" in elsewhere.provenance


def test_a_plan_tells_how_certain_it_is(learned: LearnedCosts) -> None:
    """A search with learned costs reports their uncertainty, and what was extrapolated."""
    net, options = make_net(200, 6), SearchOptions(batch_size=16, effort=0.1, baselines=False)
    for name, outside in (("cpu", False), ("dgx-a100", True)):
        park = find_cluster(name, gpus=2)
        tables = predict_tables(net, park, choose_training(net, park, options), learned)
        plan = search_plan(net, park, options, tables=tables)
        certainty = plan.provenance.certainty
        assert certainty is not None and certainty.step_uncertainty > 0
        assert certainty.extrapolated_share == pytest.approx(1.0 if outside else 0.0)
        text = render_text(plan, simulate_program(plan.prices, plan.parse_program()), width=200)
        assert "uncertainty: step time" in text
        assert ("EXTRAPOLATED: 12 of 12 ops" in text) is outside


def test_command_line(
    learned: LearnedCosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train from files, profile and search with the result."""
    monkeypatch.chdir(tmp_path)
    write_noun(make_set(6), "set.json.gz")
    write_noun(make_net(120, 3), "graph.json")
    assert run_command(["learn", "set.json.gz", "--epochs", "2", "-o", "cost.json"]) == 0
    assert (
        run_command(
            ["profile", "graph.json", "--costs", "learned:cost.json", "--batch-sizes", "1,4"]
        )
        == 0
    )
    assert read_noun("table.json", ProfileTable).source == "learned"
    search = ["search", "graph.json", "--cluster", "cpu", "--gpus", "2", "--batch", "8"]
    costs = ["--costs", "learned:cost.json", "--time-limit", "0.5", "--no-baselines", "--quiet"]
    assert run_command([*search, *costs]) == 0
    plan = read_noun("plan.json", Plan)
    assert plan.provenance.costs == "learned" and plan.provenance.certainty is not None
    assert run_command(["profile", "graph.json", "--costs", "cost.json"]) == 2
    assert run_command([*search, "--costs", "learned:"]) == 2


def test_without_torch_geometric_the_install_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and the command."""
    for name in [each for each in sys.modules if each.split(".")[0] == "torch_geometric"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(MissingExtra, match=r"graphplan\[learned\]"):
        learn_costs(make_set(6), epochs=1)
