"""`search --for`: what is found can be exported, and says what was given up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from graphplan.cli.main import run_command
from graphplan.cost.hardware import find_cluster
from graphplan.errors import InvalidOption, UnknownName
from graphplan.export.gate import judge_export
from graphplan.export.targets import TARGETS
from graphplan.files import read_noun, write_noun
from graphplan.nouns.plan import Plan
from graphplan.planner.options import SearchOptions
from graphplan.planner.targeted import describe_target, group_ops, search_for
from tests.pure.exported import decoder, listed_layers
from tests.pure.test_planner import towers

QUICK = SearchOptions(batch_size=8, micro_batch_sizes=(2,), effort=0.01)
MODEL = decoder(4, width=1024)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_found_passes_the_gate(target: str) -> None:
    """Every target gets a plan that it can run; it is not faster than that of a free search."""
    options = dataclasses.replace(QUICK, baselines=target == "megatron")
    found = search_for(MODEL, find_cluster("summit", gpus=2), options, target)
    assert not judge_export(found.plan, TARGETS[target], MODEL)
    if found.free_step_s is None:
        return
    assert found.plan.prediction.step_s >= found.free_step_s * 0.999
    told = describe_target(found)
    assert all(each.reason in told for each in found.given_up)


def test_a_model_that_no_plan_could_help_is_refused() -> None:
    """Before anything is searched."""
    with pytest.raises(InvalidOption, match="no list of repeated layers"):
        search_for(towers(), find_cluster("summit", gpus=2), QUICK, "megatron")
    with pytest.raises(UnknownName, match="megatronn"):
        search_for(towers(), find_cluster("summit", gpus=2), QUICK, "megatronn")


def test_layers_and_what_stands_around_them_stay_whole() -> None:
    """Tables that the layers read go with the embedding."""
    groups = group_ops(listed_layers(decoder(2)))
    assert groups == (
        ("rotary", "embed"),
        ("attend0", "feed0"),
        ("attend1", "feed1"),
        ("norm", "score"),
    )


def test_the_command_searches_for_a_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is written, exports, and the terminal says for whom it is."""
    write_noun(MODEL, tmp_path / "graph.json")
    graph, plan = str(tmp_path / "graph.json"), str(tmp_path / "plan.json")
    words = ["search", graph, "--gpus", "2", "--batch", "16", "--micro-batch", "2"]
    assert run_command([*words, "--for", "megatron", "--no-baselines", "-o", plan]) == 0
    assert "Megatron-Core can run this plan" in capsys.readouterr().out
    assert not judge_export(read_noun(plan, Plan), TARGETS["megatron"], MODEL)
    assert run_command(["export", plan, "--to", "megatron", "--model", graph]) == 0
