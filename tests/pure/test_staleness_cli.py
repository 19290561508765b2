"""`graphplan staleness`: table, JSON, figure and errors."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from graphplan.cli.main import run_command
from graphplan.files import write_noun
from tests.pure.legal import legal_plans


def write_plan(folder: Path, name: str) -> str:
    """One of the legal plans as a file."""
    path = folder / "plan.json"
    write_noun(legal_plans()[name], path)
    return str(path)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `--json` prints."""
    assert run_command(["staleness", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_chain_by_its_number_of_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """Delays, versions and limits of four stages."""
    found = run_json(capsys, "--stages", "4")
    assert (found["largest_delay"], found["mean_delay"]) == (14, 7.5)
    assert [row["versions"] for row in found["stages"]] == [4, 3, 2, 1]
    assert [row["delay"]["staleness"] for row in found["stages"]] == [3, 2, 1, 0]
    assert found["largest_rate"] == pytest.approx(0.445042, abs=1e-6)
    assert found["graph"] == found["chain"]
    rates = {row["policy"]: row["largest_rate"] for row in found["policies"]}
    assert rates["flush"] == 2.0
    assert rates["2bw"] == pytest.approx(1.0)


def test_a_graph_beside_its_chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two branches of two stages: with free messages 13 block updates against the chain's 22."""
    found = run_json(capsys, write_plan(tmp_path, "branches"))
    assert (found["plan_policy"], found["policy"]["name"]) == ("flush", "stash")
    assert (found["graph"]["depth"], found["graph"]["largest_delay"]) == (3, 13)
    assert (found["chain"]["depth"], found["chain"]["largest_delay"]) == (5, 22)
    # Messages take time in this plan, which more warm-ups hide.
    assert found["largest_delay"] == 18
    assert found["graph"]["bound"]["staleness"] < found["chain"]["bound"]["staleness"]


@pytest.mark.parametrize("name", ["2bw", "stash"])
def test_asynchronous_plans_keep_their_policy(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Warm-ups and accumulation are the plan's own."""
    plan = legal_plans()[name]
    found = run_json(capsys, write_plan(tmp_path, name))
    assert found["policy"]["name"] == found["plan_policy"] == name
    assert tuple(found["policy"]["warmups"]) == plan.policy.warmups
    assert found["policy"]["accumulate"] == plan.policy.accumulate


@pytest.mark.parametrize("name", ["replicas", "frozen", "shared"])
def test_every_shape_has_an_answer(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replicas, frozen stages and several stages on a device."""
    found = run_json(capsys, write_plan(tmp_path, name), "--policy", "2bw")
    trained = [stage for stage in found["stages"] if stage["delay"]]
    assert {stage["delay"]["staleness"] for stage in trained} == {1}
    assert len(trained) == found["num_stages"] == 3 - (name == "frozen") + (name == "shared")


def test_curvature_scales_the_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten times the curvature bears a tenth of the learning rate; --lr fixes that of the bound."""
    found = run_json(capsys, "--stages", "2", "--curvature", "10", "--lr", "0.01", "--steps", "400")
    assert found["largest_rate"] == pytest.approx(0.1)
    assert found["bound"] == pytest.approx(
        {"rate": 0.01, "descent": 1.0, "noise": 0.2, "staleness": 0.09}
    )


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each stage, the shapes side by side, a row for each policy."""
    path = write_plan(tmp_path, "branches")
    assert run_command(["staleness", path]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "3", "4", "3", "17", "13.0", "0.4450"] in lines
    assert ["largest", "delay,", "block", "updates", "18", "13", "22"] in lines
    assert ["predict", "3", "2", "0.2656"] in lines
    assert "own policy is flush" in shown


def test_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Valid SVG with the version of every read, predictions marked."""
    path = tmp_path / "staleness.svg"
    assert (
        run_command(["staleness", "--stages", "3", "--policy", "predict", "--svg", str(path)]) == 0
    )
    assert capsys.readouterr().out == f"written to {path}\n"
    texts = [each.text for each in ElementTree.parse(path).getroot().iter() if each.text]
    assert "3·v1+2" in texts
    assert "3·v3" in texts
    assert "chain: 7" in texts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give a plan or a number of stages"),
        (["plan.json", "--stages", "3"], "one of the two"),
        (["--stages", "3", "--policy", "stsh"], "Did you mean 'stash'?"),
        (["--stages", "3", "--policy", "flush"], "its staleness is 0"),
        (["--stages", "4", "--policy", "2bw", "--accumulate", "2"], "Set accumulate to 3"),
        (["--stages", "3", "--lr", "-1"], "Give a positive one"),
        (["--stages", "3", "--curvature", "0"], "must be positive"),
        (["--stages", "3", "--gradient", "nan"], "must be positive and finite"),
        (["--stages", "3", "--lr", "nan"], "--lr is nan"),
        (["--stages", "3", "--momentum", "1"], "not between 0 and 1"),
        (["missing.json"], "Cannot read missing.json"),
    ],
)
def test_wrong_input(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what is wrong and what to type."""
    assert run_command(["staleness", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_mixed_micro_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Versions are counted in micro-batches of one size."""
    assert run_command(["staleness", write_plan(tmp_path, "mixed")]) == 2
    assert "micro-batches of 2, 4 samples" in capsys.readouterr().err
